"""Runs the peers of compare.py, one call per process; also makes the tensors that all sides read.

  peers.py make DIR N H V K DTYPE
  peers.py call PEER PART DIR N H V K DTYPE THREADS REPEATS WORKSPACE_MIB

The latter prints one line of JSON. With a workspace, the chunks of "chunked" are as large as fits into it.

Tensors are raw little-endian files, which torch.from_file and at::from_file map: hidden, lm_head
(DTYPE), support_ids [N,K] and sampled_ids [N] (int32), teacher_log_probs [N,K], teacher_log_tail [N]
and row_weights [N] (float32), and d_hidden [N,H] from the float64 computation.
"""
import json
import pathlib
import sys
import time

import torch

CHUNK_ROWS = 64  # without a given workspace
CHUNK_BYTES_PER_LOGIT = 16  # float32 logits, log-probs and the gradients of both
EPS = 1e-6  # the listing's epsilon; the text does not give one
BLOCK = 8192  # number of vocabulary rows that are converted to float64 at a time
LOGIT_STD = 6.0  # a language model's logits: peaked distributions with a long tail


def write(path, tensor):
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    tensor.numpy().tofile(path)


def read(data, name, shape, dtype):
    count = 1
    for size in shape:
        count *= size
    # A copy, so that the process owns the pages before anything is measured.
    return torch.from_file(str(data / name), False, count, dtype=dtype).reshape(shape).clone()


def log1mexp(x):
    return torch.log1p(-torch.exp(x))


def listing(student_log_probs, teacher_log_probs):
    """The paper's compute_taopd_loss."""
    def with_tail(log_probs):
        mass = torch.logsumexp(log_probs, -1, keepdim=True)
        return torch.cat([log_probs, log1mexp(torch.clamp_max(mass, -EPS))], -1)

    log_p, log_q = with_tail(student_log_probs), with_tail(teacher_log_probs)
    return (torch.exp(log_p) * (log_p - log_q)).sum(-1)


def make(data, num_rows, hidden_size, vocabulary, k, dtype):
    torch.manual_seed(1)
    hidden = torch.randn(num_rows, hidden_size).to(dtype)
    lm_head = (torch.randn(vocabulary, hidden_size) * (LOGIT_STD / hidden_size**0.5)).to(dtype)
    logits = torch.empty(num_rows, vocabulary, dtype=torch.float64)
    for begin in range(0, vocabulary, BLOCK):
        torch.mm(hidden.double(), lm_head[begin:begin + BLOCK].double().t(),
                 out=logits[:, begin:begin + BLOCK])
    teacher = logits.float() + torch.randn(num_rows, vocabulary) * 0.5
    log_z = torch.logsumexp(teacher, -1, keepdim=True)
    top, ids = teacher.topk(k, -1)
    log_q = top - log_z
    del teacher
    log_tail = log1mexp(torch.clamp_max(torch.logsumexp(log_q.double(), -1), -EPS)).float()
    weights = torch.full((num_rows,), 1.0 / num_rows)
    # In float64: the loss of the support and the tail, and dH = dZ W by blocks.
    leaf = logits.requires_grad_(True)
    log_p = torch.log_softmax(leaf, -1).gather(-1, ids)
    log_p = torch.cat([log_p, log1mexp(torch.logsumexp(log_p, -1, keepdim=True))], -1)
    full_q = torch.cat([log_q, log_tail.unsqueeze(-1)], -1).double()
    loss = (log_p.exp() * (log_p - full_q)).sum(-1)
    (loss * weights.double()).sum().backward()
    d_hidden = torch.zeros(num_rows, hidden_size, dtype=torch.float64)
    for begin in range(0, vocabulary, BLOCK):
        d_hidden += leaf.grad[:, begin:begin + BLOCK] @ lm_head[begin:begin + BLOCK].double()
    for name, tensor in [("hidden", hidden), ("lm_head", lm_head), ("support_ids", ids.int()),
                         ("sampled_ids", ids[:, 0].int()), ("teacher_log_probs", log_q),
                         ("teacher_log_tail", log_tail), ("row_weights", weights),
                         ("d_hidden", d_hidden)]:
        write(data / name, tensor)


def resident_kib(key):
    for line in open("/proc/self/status", encoding="ascii"):
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0


def reset_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def student(peer, hidden, lm_head, ids, log_q, weights, chunk_rows=CHUNK_ROWS):
    """Runs one forward and backward pass; the gradients are in .grad afterwards."""
    rows = chunk_rows if peer == "chunked" else hidden.shape[0]
    for begin in range(0, hidden.shape[0], rows):
        part = slice(begin, begin + rows)
        logits = hidden[part] @ lm_head.t()
        if peer != "eager":
            logits = logits.float()
        log_probs = torch.log_softmax(logits, -1)
        log_probs.detach().topk(ids.shape[1], -1)  # the student's own, for the overlap metric
        loss = listing(log_probs.gather(-1, ids[part]), log_q[part])
        (loss * weights[part]).sum().backward()


def call(peer, part, data, num_rows, hidden_size, vocabulary, k, dtype, threads, repeats, workspace_mib):
    if peer == "liger":
        sys.exit("Liger's kernels are Triton, on GPUs only; tests/gpu/run has the table for GPUs")
    torch.set_num_threads(threads)
    chunk_rows = CHUNK_ROWS
    if workspace_mib > 0:
        chunk_rows = max(1, (workspace_mib << 20) // (vocabulary * CHUNK_BYTES_PER_LOGIT))
    hidden = read(data, "hidden", (num_rows, hidden_size), dtype)
    lm_head = read(data, "lm_head", (vocabulary, hidden_size), dtype)
    ids = read(data, "support_ids", (num_rows, k), torch.int32).long()
    log_q = read(data, "teacher_log_probs", (num_rows, k), torch.float32)
    weights = read(data, "row_weights", (num_rows,), torch.float32)
    sampled = read(data, "sampled_ids", (num_rows,), torch.int32).long().unsqueeze(-1)

    def teacher(hidden, lm_head, sampled):
        with torch.no_grad():
            log_probs = torch.log_softmax((hidden @ lm_head.t()).float(), -1)
            return log_probs.topk(k, -1), log_probs.gather(-1, sampled)

    # Loads libraries, threads and generated kernels before anything is measured.
    small = [torch.randn(16, 64).to(dtype).requires_grad_(True),
             torch.randn(128, 64).to(dtype).requires_grad_(True)]
    student(peer, *small, torch.arange(k).expand(16, k).contiguous(),
            torch.log_softmax(torch.randn(16, k), -1) - 0.1, torch.ones(16))
    if part == "student":
        hidden.requires_grad_(True)
        lm_head.requires_grad_(True)
    times, cpu_times, memory_kib = [], [], None
    for _ in range(repeats):
        hidden.grad = lm_head.grad = None
        reset_peak()
        before = resident_kib("VmRSS")
        start, cpu_start = time.perf_counter(), time.process_time()
        if part == "student":
            student(peer, hidden, lm_head, ids, log_q, weights, chunk_rows)
        else:
            teacher(hidden, lm_head, sampled)
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
        if memory_kib is None:
            memory_kib = resident_kib("VmHWM") - before
            if part == "student":
                memory_kib -= sum(t.grad.numel() * t.grad.element_size()
                                  for t in (hidden, lm_head)) / 1024
        if sum(times) > 20:
            break
    result = {"time_s": min(times), "times_s": times, "cpu_s": min(cpu_times),
              "memory_mib": memory_kib / 1024}
    if part == "student":
        exact = read(data, "d_hidden", (num_rows, hidden_size), torch.float64)
        result["d_hidden_error"] = float((hidden.grad.double() - exact).norm() / exact.norm())
    print(json.dumps(result))


def main():
    arguments = sys.argv[2:]
    peer_part = []
    if sys.argv[1] == "call":
        peer_part, arguments = arguments[:2], arguments[2:]
    data = pathlib.Path(arguments[0])
    num_rows, hidden_size, vocabulary, k = map(int, arguments[1:5])
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[arguments[5]]
    if sys.argv[1] == "make":
        make(data, num_rows, hidden_size, vocabulary, k, dtype)
    else:
        call(*peer_part, data, num_rows, hidden_size, vocabulary, k, dtype, *map(int, arguments[6:9]))


if __name__ == "__main__":
    main()
