"""Compares the inference engine on this CPU with transformers, llama.cpp and vLLM on the same random weights.

    deploy/setup --bench
    ninja -C build/cpu engine_bench
    tests/bench/run engine [--model-dir DIR] [--rounds 2] [--case score] [--dtype bfloat16] ...

Random bfloat16 weights of Qwen3-0.6B's shape (--config for another), in bfloat16 and widened to
float32. Each run is a fresh process; in a round, all programs run one after another. The table has the
best of the rounds, and the number of cores that other processes used meanwhile.

  score      log-probs and the 16 most probable ids of 8 sequences of 512 tokens
  prefill    one prompt of 512 tokens, one new token
  decode_N   N prompts of 64 tokens, decoded together; the prompts' time is not counted

A peer that is not installed, or cannot run a case, is skipped by name. "transformers by sequence"
scores the same sequences with one call of the model each; "transformers whole" computes the log_softmax
of all of them at once, as a short script does. The engine scores without a KV pool, like a teacher that
only scores. llama.cpp does not sample, keeps float16 keys and values, and computes its log-probs and its
top 16 with PyTorch. Shares compare the engine's rates with those of loops that only read memory or only
multiply, measured in its own process (engine_bench.cc).
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from machine import (BINARIES, QWEN3, Load, add_python, check_program, commit, dependencies, last_json, make_model, parser_of,
                     processor)

# name: (kind, sequences, prompt tokens, top_k or new tokens)
CASES = {
    "score": ("score", 8, 512, 16),
    "prefill": ("generate", 1, 512, 1),
    "decode_1": ("generate", 1, 64, 64),
    "decode_16": ("generate", 16, 64, 128),
    "decode_64": ("generate", 64, 64, 64),
}
PEERS = ["transformers", "transformers-by-sequence", "transformers-whole", "llama.cpp", "vllm"]
BEST = "best peer"
# case: [(peer, required ratio of our rate to the peer's)]
GOALS = {
    "score": [(BEST, 1.6)],
    "prefill": [(BEST, 1.3)],
    "decode_1": [("llama.cpp", 1.1)],
    "decode_16": [("llama.cpp", 2.0), ("transformers", 4.0)],
    "decode_64": [],
}
PEAK_GOAL = 0.3  # share of transformers' peak when scoring


def parse_arguments():
    parser = parser_of("engine", __doc__)
    add_python(parser, "transformers and llama-cpp-python")
    parser.add_argument("--vllm-python", default=str(dependencies() / "vllm-venv/bin/python"),
                        help="Python with vLLM (default: %(default)s)")
    parser.add_argument("--bench", default=str(BINARIES / "engine_bench"))
    parser.add_argument("--config", default=str(QWEN3))
    parser.add_argument("--model-dir", help="reuse these weights; made, and kept, when absent")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float32"], help="default: both")
    parser.add_argument("--peer", action="append", choices=PEERS, help="default: all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="timed repetitions of a run")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu-time", action="store_true", help="rates by the CPU time of one thread instead of the "
                        "clock on the wall (--threads 1): for a machine that others use, too")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of one run")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait for others spin")
    return options


def run_program(command, options):
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), MKL_NUM_THREADS=str(options.threads),
                       TOKENIZERS_PARALLELISM="false")
    load = Load()
    result = last_json(command, environment, options.limit)
    if "failed" in result:
        return result
    result["others"] = load.others()
    return dict(result, seconds=result["cpu_s"], decode_s=result["decode_cpu_s"]) if options.cpu_time else result


def missing_peers(options):
    """Returns the reasons why peers are skipped, by name."""
    skipped = {}
    modules = {"transformers": "transformers", "transformers-by-sequence": "transformers",
               "transformers-whole": "transformers",
               "llama.cpp": "llama_cpp, gguf", "vllm": "vllm"}
    for peer in PEERS:
        python = options.vllm_python if peer == "vllm" else options.python
        if options.peer and peer not in options.peer:
            skipped[peer] = "not asked for (--peer)"
        elif not os.access(python, os.X_OK):
            skipped[peer] = f"{python} does not exist: deploy/setup --bench"
        else:
            done = subprocess.run([python, "-c", f"import {modules[peer]}"], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0:
                skipped[peer] = (done.stderr.strip().splitlines() or ["import failed"])[-1]
    return skipped


def make_models(options, peers, model_dir):
    print(f"random weights are in {model_dir}", flush=True)
    make_model(options.bench, options.config, model_dir)
    if "llama.cpp" not in peers:
        return
    for dtype in options.dtype:
        path = model_dir / f"{dtype}.gguf"
        if not path.exists():
            subprocess.run([options.python, HERE / "gguf_of.py", model_dir, dtype, path], check=True)


def command_of(program, case, dtype, options, model_dir):
    kind, *sizes = CASES[case]
    tail = [kind, *map(str, sizes), str(options.repeat)]
    if program == "ours":
        return [options.bench, "run", model_dir, dtype, str(options.threads), *tail]
    python = options.vllm_python if program == "vllm" else options.python
    model = model_dir / f"{dtype}.gguf" if program == "llama.cpp" else model_dir
    return [python, HERE / "peers.py", program, model, dtype, str(options.threads), *tail]


def merge(best, result):
    """Returns the minimum of times and peaks, and the maximum of the machine's rates, over the rounds."""
    if "failed" in result:
        return best or result
    if not best or "failed" in best:
        return result
    merged = dict(best)
    for key, value in result.items():
        if key in ("seconds", "decode_s", "load_s", "peak_bytes", "loaded_bytes"):
            merged[key] = min(best[key], value)
        elif key in ("peak_gflops", "read_gb_per_s", "others"):
            merged[key] = max(best[key], value)
    return merged


def tokens_per_s(case, result):
    _, sequences, prompt, num_new = CASES[case]
    if case.startswith("decode"):
        return sequences * (num_new - 1) / result["decode_s"]
    return sequences * prompt / result["seconds"]


def shares(case, ours):
    """Returns the shares (of the read rate, of the products' rate); the first only for decoding."""
    rate = tokens_per_s(case, ours)
    head_rows = 1 / CASES[case][2] if case == "prefill" else 1  # of a token
    flops = ours["flops_per_token"] + head_rows * ours["head_flops"]
    if not case.startswith("decode"):  # a query multiplies half of the prompt's keys on average
        flops += ours["attention_flops"] * (CASES[case][2] + 1) / 2
    read = ours["bytes_per_step"] * rate / CASES[case][1] / ours["read_gb_per_s"] / 1e9
    return read if case.startswith("decode") else None, flops * rate / ours["peak_gflops"] / 1e9


def judge(ratio, goal):
    return f"{ratio:.2f}x (goal {goal:g}x: {'met' if ratio >= goal else 'MISSED'})"


def goal_cell(case, row):
    """Compares the engine with each peer that a goal names; the ratio to the best peer comes first."""
    ours = tokens_per_s(case, row["ours"])
    rates = {peer: tokens_per_s(case, row[peer]) for peer in PEERS if peer in row and "failed" not in row[peer]}
    if not rates:
        return "no peer"
    best = max(rates, key=rates.get)
    cells, names = [], [name for name, _ in GOALS[case]]
    if BEST not in names:
        cells.append(f"{ours / rates[best]:.2f}x {best}")
    for name, goal in GOALS[case]:
        peer = best if name == BEST else name
        cells.append(f"{peer}: " + (judge(ours / rates[peer], goal) if peer in rates else f"not run (goal {goal:g}x)"))
    return "; ".join(cells)


def print_tables(report, peers):
    columns = ["ours", *peers]
    print("\ntokens/s\n\n| dtype | case | " + " | ".join(columns) + " | ours to the peers | share of the read rate "
          "| share of the GEMM peak |")
    print("|" + "---|" * (len(columns) + 5))
    for (dtype, case), row in report.items():
        if "failed" in row["ours"]:
            print(f"| {dtype} | {case} | failed: {row['ours']['failed']} |")
            continue
        cells = [("failed" if "failed" in row[name] else f"{tokens_per_s(case, row[name]):.1f}") if name in row else "-"
                 for name in columns]
        read, gemm = shares(case, row["ours"])
        print(f"| {dtype} | {case} | " + " | ".join(cells) + f" | {goal_cell(case, row)} | "
              f"{'' if read is None else f'{read:.0%}'} | {gemm:.0%} |")
    print("\npeak memory above the start, GB (after loading, in seconds)\n\n| dtype | case | " + " | ".join(columns) + " | goal |")
    print("|" + "---|" * (len(columns) + 3))
    for (dtype, case), row in report.items():
        cells = [f"{row[name]['peak_bytes'] / 1e9:.2f} ({row[name]['loaded_bytes'] / 1e9:.2f}, {row[name]['load_s']:.1f} s)"
                 if name in row and "failed" not in row[name] else "-" for name in columns]
        goals = []
        for name in ["transformers-whole", "transformers"]:
            theirs = row.get(name, {}).get("peak_bytes")
            if case == "score" and theirs and "failed" not in row["ours"]:
                ratio = row["ours"]["peak_bytes"] / theirs
                goals.append(f"{ratio:.2f} of {name}'s (goal {PEAK_GOAL}: {'met' if ratio <= PEAK_GOAL else 'MISSED'})")
        print(f"| {dtype} | {case} | " + " | ".join(cells) + f" | {', '.join(goals)} |")


def measure(options, peers, model_dir):
    report = {}
    start = time.monotonic()
    for round_index in range(options.rounds):
        for dtype in options.dtype:
            for case in options.case:
                row = report.setdefault((dtype, case), {})
                for program in ["ours", *peers]:
                    if program.startswith("transformers-") and case != "score":
                        continue
                    result = run_program(command_of(program, case, dtype, options, model_dir), options)
                    row[program] = merge(row.get(program), result)
                    text = result.get("failed") or (f"{tokens_per_s(case, result):9.1f} tokens/s, "
                                                    f"others take {result['others']:.1f} cores")
                    print(f"[{time.monotonic() - start:5.0f} s] round {round_index + 1} {dtype} {case:9} "
                          f"{program:24} {text}", flush=True)
    return report


def main():
    options = parse_arguments()
    options.case = options.case or list(CASES)
    options.dtype = options.dtype or ["bfloat16", "float32"]
    check_program(options.bench, "ninja -C build/cpu engine_bench")
    skipped = missing_peers(options)
    peers = [peer for peer in PEERS if peer not in skipped]
    clock = "CPU time" if options.cpu_time else "clock on the wall"
    print(f"{processor()}; {options.threads} threads, {clock}; commit {commit()}; {options.rounds} rounds")
    for peer, reason in skipped.items():
        print(f"skipped: {peer}: {reason}", flush=True)
    with tempfile.TemporaryDirectory(prefix="engine") as temporary:
        model_dir = pathlib.Path(options.model_dir or os.path.join(temporary, "model"))
        make_models(options, peers, model_dir)
        report = measure(options, peers, model_dir)
    print_tables(report, peers)
    for peer in peers:
        versions = {row[peer]["version"] for row in report.values() if "version" in row.get(peer, {})}
        print(f"{peer}: {', '.join(versions) or 'no result'}")
    failures = {f"{peer}: {row[peer]['failed']}" for row in report.values() for peer in row if "failed" in row[peer]}
    print("\n".join(sorted(failures)))


if __name__ == "__main__":
    main()
