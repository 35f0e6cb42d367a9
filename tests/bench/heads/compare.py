"""Compares the fused heads with other implementations on the same tensors.

Each side is a fresh process with the same number of threads. A side warms up on tiny tensors, then
computes the whole shape: the first call gives the memory (the growth of the peak resident set, without
the gradient buffers that the side returns), the fastest call the time. The error of d hidden is the
Frobenius norm of the difference to the float64 result, divided by the norm of that result.

  student   TA-OPD loss (paper, listing alg:maopd), forward and backward, both gradients
  teacher   log-sum-exp, top-k and the sampled token's log-prob

Peers: "eager", the paper's listing on PyTorch's log_softmax, topk, gather and autograd, with logits
in the dtype of the weights; "eager, float32 logits"; "chunked", the same in chunks of 64 rows with
float32 logits; "liger", Liger's fused linear KL, which is written in Triton and does not run on CPUs, as
its row says.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from machine import ROOT, add_python, check_program, commit, last_json, parser_of, processor
SHAPES = [(256, 1024, 151936), (1024, 256, 4096)]
TOP_K = [2, 16, 64]
PEERS = ["eager", "eager, float32 logits", "chunked", "liger"]
# A peer's time hardly depends on k: if one call takes longer than this, only k = 16 is measured.
SLOW_CALL_S = 5.0


def describe(row: dict) -> str:
    if "failed" in row:
        return f"not run: {row['failed']}"
    text = f"{row['time_s'] * 1e3:9.1f} ms ({row['cpu_s'] * 1e3:.0f} of the processor)"
    text += f" {row['gflops']:7.1f} GFLOP/s"
    if row.get("memory_mib") is not None:
        text += f" {row['memory_mib']:8.1f} MiB"
    if row.get("d_hidden_error") is not None:
        text += f"  error {row['d_hidden_error'] * 100:.4f} %"
    if row.get("speedup") is not None:
        text += f"  ours is {row['speedup']:.2f}x faster"
        if row.get("memory_ratio") is not None:
            text += f", needs 1/{row['memory_ratio']:.1f} of the memory"
    return text


def main():
    parser = parser_of("heads", __doc__)
    add_python(parser, "PyTorch")
    parser.add_argument("--build", default=str(ROOT / "build/cpu"), help="CMake build directory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of a side")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS",
                        help="a side that takes longer is stopped (default: %(default)s): without "
                        "instructions for bfloat16 PyTorch needs minutes a call on the large shape")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], action="append")
    parser.add_argument("--shape", choices=["large", "small"], action="append",
                        help="large: [256,1024] x 151936; small: [1024,256] x 4096; default: both")
    parser.add_argument("--k", type=int, action="append", help="default: 2, 16 and 64")
    parser.add_argument("--part", choices=["student", "teacher"], action="append", help="default: both")
    parser.add_argument("--peer", choices=PEERS, action="append", help="default: all")
    parser.add_argument("--workspace", type=int, action="append", metavar="MIB",
                        help="memory of the student's head, which chunked PyTorch gets, too; repeat it for "
                        "time against workspace (default: an eighth of eager's memory, 64 rows of chunked)")
    options = parser.parse_args()

    binary = pathlib.Path(options.build) / "bin/head_call"
    check_program(binary, f"ninja -C {options.build} head_call")
    check_program(options.python, "deploy/setup --oracle, or --python")
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    peers_script = str(pathlib.Path(__file__).with_name("peers.py"))
    shapes = [SHAPES[["large", "small"].index(name)] for name in options.shape or ["large", "small"]]
    start = time.monotonic()
    print(f"{processor()}, {options.threads} threads, {commit()}")

    for num_rows, hidden, vocabulary in shapes:
        for dtype in options.dtype or ["bfloat16", "float32"]:
            slow = set()
            for k in sorted(options.k or TOP_K, key=lambda k: (k != 16, k)):
                with tempfile.TemporaryDirectory(prefix="heads") as data:
                    shape = [str(num_rows), str(hidden), str(vocabulary), str(k), dtype]
                    print(f"\n[{num_rows},{hidden}] x {vocabulary}, k {k}, {dtype}", flush=True)
                    subprocess.run([options.python, peers_script, "make", data] + shape,
                                   env=environment, check=True)
                    calls = [(part, mib) for part in options.part or ["student", "teacher"]
                             for mib in (options.workspace or [0] if part == "student" else [0])]
                    eager = {}  # its memory is its own, so that one call serves all workspaces
                    for part, workspace_mib in calls:
                        if part == "teacher" and k != 16:
                            continue
                        call = [part, data] + shape + [str(options.threads), str(options.repeats),
                                                       str(workspace_mib)]
                        if workspace_mib:
                            print(f"  workspace {workspace_mib} MiB", flush=True)
                        ours = last_json([binary] + call, environment, options.limit)
                        for name in ["ours"] + (options.peer or PEERS):
                            if name in slow or (part == "teacher" and name not in ("ours", "eager")):
                                continue
                            if dtype == "float32" and name == "eager, float32 logits":
                                continue  # the same as eager
                            if name == "ours":
                                row = ours
                            elif (part, name) in eager:
                                row = dict(eager[part, name])
                            else:
                                row = last_json([options.python, peers_script, "call", name] + call,
                                               environment, options.limit)
                                if name != "chunked":
                                    eager[part, name] = dict(row)
                            if "stopped_after_s" in row:
                                slow.add(name)
                            if "time_s" in row:
                                gemms = 3 if part == "student" else 1
                                flops = 2 * gemms * num_rows * hidden * vocabulary
                                row["gflops"] = flops / row["time_s"] / 1e9
                                if row["time_s"] > SLOW_CALL_S and name != "ours":
                                    slow.add(name)
                                if name != "ours" and "time_s" in ours:
                                    row["speedup"] = row["time_s"] / ours["time_s"]
                                    if ours.get("memory_mib") and row.get("memory_mib"):
                                        row["memory_ratio"] = row["memory_mib"] / ours["memory_mib"]
                            print(f"  {part:8} {name:22} {describe(row)}", flush=True)
                        if "method" in ours:
                            share = ours["gflops"] / ours["mm_gflops"]
                            print(f"  {'':8} ours: {ours['method']}; {share * 100:.0f} % of the "
                                  f"{ours['mm_gflops']:.0f} GFLOP/s of float32 at::mm", flush=True)
                        if ours.get("products_s"):
                            print(f"  {'':8} ours: {ours['time_s'] / ours['products_s']:.2f}x the "
                                  f"{ours['products_s'] * 1e3:.1f} ms of the three products alone", flush=True)
                    for name in sorted(slow):
                        if k != 16:
                            print(f"  {'student':8} {name:22} not run: as with k = 16, above")
    print(f"\nTook {time.monotonic() - start:.0f} s.")


if __name__ == "__main__":
    main()
