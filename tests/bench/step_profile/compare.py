"""Shows where a training step on the CPU spends its time, by phase and part (bin/step_profile_bench).

    ninja -C build/cpu step_profile_bench
    tests/bench/run step_profile [--cases tiny,qwen3_float32,qwen3_bfloat16] [--before BINARY]

Prints the milliseconds of CPU time of one step, for quickstart's student on one of its mini-batches and for
Qwen3-0.6B's shape on --tokens tokens, which is measured with one and with three layers and extrapolated linearly to
its 28 layers. --before names another build's step_profile_bench; both run in turn, and their numbers appear side by
side.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from machine import BINARIES, QWEN3, ROOT, must_run, parser_of

TINY = ROOT / "deploy/examples/addition/config.json"
FEW_LAYERS, MORE_LAYERS, ALL_LAYERS = 1, 3, 28


def extended(few, more):
    """Extrapolates the line through both to ALL_LAYERS layers."""
    return few + (more - few) * (ALL_LAYERS - FEW_LAYERS) / (MORE_LAYERS - FEW_LAYERS)


def lower(rounds):
    """Returns the minimum of each number over several runs."""
    best = dict(rounds[0], parts_ms=dict(rounds[0]["parts_ms"]))
    for result in rounds[1:]:
        for key in ("step_ms", "peak_mib"):
            best[key] = min(best[key], result[key])
        for part, ms in result["parts_ms"].items():
            best["parts_ms"][part] = min(best["parts_ms"].get(part, ms), ms)
    return best


def main():
    parser = parser_of("step_profile", __doc__)
    parser.add_argument("--bench", default=str(BINARIES / "step_profile_bench"))
    parser.add_argument("--before", help="step_profile_bench of another build")
    parser.add_argument("--cases", default="tiny,qwen3_float32,qwen3_bfloat16")
    parser.add_argument("--tokens", type=int, default=256, help="of the Qwen3 step, in sequences of 128")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads),
                       OMP_WAIT_POLICY="passive")

    def run(binary, *arguments):
        return must_run([binary, *arguments], environment)

    def measure(binary, case):
        if case == "tiny":  # a mini-batch of addition: 18 prompts, 4 rollouts each
            return run(binary, TINY, "float32", 2, 72, 56, 30)
        sizes = (args.tokens // 128, 128, args.repeat)
        few = run(binary, QWEN3, case.removeprefix("qwen3_"), FEW_LAYERS, *sizes)
        more = run(binary, QWEN3, case.removeprefix("qwen3_"), MORE_LAYERS, *sizes)
        few_parts, more_parts = few["parts_ms"], more["parts_ms"]
        result = dict(more, step_ms=extended(few["step_ms"], more["step_ms"]),
                      parameters=extended(few["parameters"], more["parameters"]),
                      peak_mib=extended(few["peak_mib"], more["peak_mib"]))
        result["parts_ms"] = {part: max(0.0, extended(few_parts.get(part, ms), ms)) for part, ms in more_parts.items()}
        return result

    binaries = [("before", args.before)] if args.before else []
    binaries.append(("now", args.bench))
    for case in args.cases.split(","):
        rounds = {name: [] for name, _ in binaries}
        for _ in range(args.rounds):
            for name, binary in binaries:
                rounds[name].append(measure(binary, case))
        results = {name: lower(of_name) for name, of_name in rounds.items()}
        now = results["now"]
        print(f"\n{case}: {now['tokens']} tokens, {now['rows']} rows, {now['parameters'] / 1e6:.3g} M parameters, "
              f"{now['threads']} thread(s); ms of processor time, share of the step")
        parts = sorted({part for result in results.values() for part in result["parts_ms"]},
                       key=lambda part: -max(r["parts_ms"].get(part, 0) for r in results.values()))
        print(f"{'':28}" + "".join(f"{name:>20}" for name in results))
        totals = {name: sum(result["parts_ms"].values()) for name, result in results.items()}
        for part in parts:
            line = f"{part:28}"
            for name, result in results.items():
                ms = result["parts_ms"].get(part, 0)
                line += f"{ms:12.2f} {100 * ms / totals[name]:6.1f}%"
            print(line)
        for label, key in (("step, not profiled", "step_ms"), ("peak memory, MiB", "peak_mib")):
            print(f"{label:28}" + "".join(f"{result[key]:12.2f}        " for result in results.values()))


if __name__ == "__main__":
    main()
