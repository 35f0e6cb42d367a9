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
SHAPES = {"large": (256, 1024, 151936), "small": (1024, 256, 4096)}
TOP_K = [2, 16, 64]
PEERS_SCRIPT = pathlib.Path(__file__).with_name("peers.py")
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


def parse_arguments():
    parser = parser_of("heads", __doc__)
    add_python(parser, "PyTorch")
    parser.add_argument("--build", default=str(ROOT / "build/cpu"), help="CMake build directory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of a side")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS",
                        help="a side that takes longer is stopped (default: %(default)s): without "
                        "instructions for bfloat16 PyTorch needs minutes a call on the large shape")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], action="append")
    parser.add_argument("--shape", choices=list(SHAPES), action="append",
                        help="large: [256,1024] x 151936; small: [1024,256] x 4096; default: both")
    parser.add_argument("--k", type=int, action="append", help="default: 2, 16 and 64")
    parser.add_argument("--part", choices=["student", "teacher"], action="append", help="default: both")
    parser.add_argument("--peer", choices=PEERS, action="append", help="default: all")
    parser.add_argument("--workspace", type=int, action="append", metavar="MIB",
                        help="memory of the student's head, which chunked PyTorch gets, too; repeat it for "
                        "time against workspace (default: an eighth of eager's memory, 64 rows of chunked)")
    return parser.parse_args()


def judge(row, ours, part, shape):
    """Adds to a row what follows from its numbers: the rate, and our advantage over a peer."""
    if "time_s" not in row:
        return
    num_rows, hidden, vocabulary = shape
    gemms = 3 if part == "student" else 1
    row["gflops"] = 2 * gemms * num_rows * hidden * vocabulary / row["time_s"] / 1e9
    if row is not ours and "time_s" in ours:
        row["speedup"] = row["time_s"] / ours["time_s"]
        if ours.get("memory_mib") and row.get("memory_mib"):
            row["memory_ratio"] = row["memory_mib"] / ours["memory_mib"]


def print_ours(ours):
    if "method" in ours:
        print(f"  {'':8} ours: {ours['method']}; {ours['gflops'] / ours['mm_gflops'] * 100:.0f} % of the "
              f"{ours['mm_gflops']:.0f} GFLOP/s of float32 at::mm", flush=True)
    if ours.get("products_s"):
        print(f"  {'':8} ours: {ours['time_s'] / ours['products_s']:.2f}x the "
              f"{ours['products_s'] * 1e3:.1f} ms of the three products alone", flush=True)


class Comparison:
    """The sides on one shape in one type."""

    def __init__(self, options, shape, dtype):
        self.options, self.shape, self.dtype = options, shape, dtype
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        self.slow = set()  # peers that are left out from now on

    def peers(self, part):
        """The peers to run. In float32 eager has float32 logits anyway."""
        for name in self.options.peer or PEERS:
            if name in self.slow or (part == "teacher" and name != "eager"):
                continue
            if self.dtype != "float32" or name != "eager, float32 logits":
                yield name

    def last_json(self, *command):
        return last_json(command, self.environment, self.options.limit)

    def run(self, k):
        num_rows, hidden, vocabulary = self.shape
        print(f"\n[{num_rows},{hidden}] x {vocabulary}, k {k}, {self.dtype}", flush=True)
        with tempfile.TemporaryDirectory(prefix="heads") as data:
            tensors = [data, *map(str, self.shape), str(k), self.dtype]
            subprocess.run([self.options.python, PEERS_SCRIPT, "make", *tensors], env=self.environment, check=True)
            known = {}  # rows of peers whose memory is their own, so that one call serves all workspaces
            for part in self.options.part or ["student", "teacher"]:
                if part == "student":
                    for workspace_mib in self.options.workspace or [0]:
                        self.run_part(part, tensors, workspace_mib, known)
                elif k == 16:
                    self.run_part(part, tensors, 0, known)
        for name in sorted(self.slow) if k != 16 else ():
            print(f"  {'student':8} {name:22} not run: as with k = 16, above")

    def run_part(self, part, tensors, workspace_mib, known):
        call = [part, *tensors, str(self.options.threads), str(self.options.repeats), str(workspace_mib)]
        if workspace_mib:
            print(f"  workspace {workspace_mib} MiB", flush=True)
        ours = self.last_json(pathlib.Path(self.options.build, "bin/head_call"), *call)
        judge(ours, ours, part, self.shape)
        print(f"  {part:8} {'ours':22} {describe(ours)}", flush=True)
        for name in self.peers(part):
            row = dict(known.get((part, name)) or self.last_json(self.options.python, PEERS_SCRIPT, "call", name, *call))
            if name != "chunked":
                known[part, name] = dict(row)
            judge(row, ours, part, self.shape)
            if "stopped_after_s" in row or row.get("time_s", 0) > SLOW_CALL_S:
                self.slow.add(name)
            print(f"  {part:8} {name:22} {describe(row)}", flush=True)
        print_ours(ours)


def main():
    options = parse_arguments()
    check_program(pathlib.Path(options.build, "bin/head_call"), f"ninja -C {options.build} head_call")
    check_program(options.python, "deploy/setup --oracle, or --python")
    start = time.monotonic()
    print(f"{processor()}, {options.threads} threads, {commit()}")
    for name in options.shape or SHAPES:
        for dtype in options.dtype or ["bfloat16", "float32"]:
            comparison = Comparison(options, SHAPES[name], dtype)
            for k in sorted(options.k or TOP_K, key=lambda k: (k != 16, k)):
                comparison.run(k)
    print(f"\nTook {time.monotonic() - start:.0f} s.")


if __name__ == "__main__":
    main()
