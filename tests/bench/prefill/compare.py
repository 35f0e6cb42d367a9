"""Compares loading and prefill on the CPU: bin/prefill_bench and transformers, in turn, on one model.

    ninja -C build/cpu prefill_bench
    tests/bench/run prefill [--tokens 512] [--rounds 2] [--threads 0]

Makes random bfloat16 weights of Qwen3-0.6B's shape (--config for another). Each round runs both
programs once, each reporting its best of --repeat after a warm-up; the table has the best of the rounds.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent


def oracle_python():
    deps = os.environ.get("TAOPD_DEPS") or os.path.expanduser("~/.cache/taopd")
    return os.environ.get("TAOPD_ORACLE_PYTHON") or os.path.join(deps, "oracle-venv/bin/python")


def run_transformers(model_dir, num_tokens, repeat):
    import torch
    import transformers

    def status(field):
        for line in open("/proc/self/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024

    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    start = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    result = {"load_s": time.perf_counter() - start, "load_peak_bytes": status("VmHWM") - before}
    ids = torch.randint(model.config.vocab_size, (1, num_tokens))
    seconds = []
    with torch.inference_mode():
        for _ in range(repeat + 1):
            start = time.perf_counter()
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
            seconds.append(time.perf_counter() - start)
    result["prefill_s"] = min(seconds[1:])
    result["threads"] = torch.get_num_threads()
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(prog="tests/bench/run prefill", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=oracle_python(), help="Python with torch and transformers")
    parser.add_argument("--bench", default=str(ROOT / "build/cpu/bin/prefill_bench"))
    parser.add_argument("--config", default=str(HERE / "qwen3_0.6b.json"))
    parser.add_argument("--model-dir", help="reuse these weights; made when absent")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: the libraries' choice")
    parser.add_argument("--transformers", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.transformers:
        directory, num_tokens, repeat = args.transformers
        return run_transformers(directory, int(num_tokens), int(repeat))

    environment = dict(os.environ)
    if args.threads:
        environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(args.threads)

    def last_json(command):
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return json.loads(output.stdout.strip().splitlines()[-1])

    with tempfile.TemporaryDirectory() as temporary:
        model_dir = args.model_dir or os.path.join(temporary, "model")
        if not os.path.exists(os.path.join(model_dir, "config.json")):
            subprocess.run([args.bench, "make", args.config, model_dir], check=True)
        sizes = [str(args.tokens), str(args.repeat)]
        best = {}
        for _ in range(args.rounds):
            ours = last_json([args.bench, "run", model_dir, *sizes])
            theirs = last_json([args.python, __file__, "--transformers", model_dir, *sizes])
            for name, values in (("ours", ours), ("transformers", theirs)):
                for key, value in values.items():
                    best.setdefault(name, {}).setdefault(key, value)
                    if key.endswith(("_s", "_bytes")):
                        best[name][key] = min(best[name][key], value)
    ours, theirs = best["ours"], best["transformers"]
    weights = ours["weight_bytes"]
    print(f"{weights / 1e9:.2f} GB of weights, {args.tokens} tokens, threads {ours['threads']}/{theirs['threads']}, "
          f"best of {args.rounds} rounds")
    print(f"{'':34}{'ours':>10}{'transformers':>14}{'ratio':>8}")
    rows = [("prefill, tokens/s", args.tokens / ours["prefill_s"], args.tokens / theirs["prefill_s"], True),
            ("load, s (weights mapped)", ours["load_s"], theirs["load_s"], False),
            ("load, s (weights copied)", ours["copy_load_s"], theirs["load_s"], False)]
    for name, a, b, higher in rows:
        print(f"{name:34}{a:10.2f}{b:14.2f}{(a / b if higher else b / a):8.2f}")
    print(f"{'peak while loading / weights':34}{ours['copy_load_peak_bytes'] / weights:10.2f}"
          f"{theirs['load_peak_bytes'] / weights:14.2f}")
    print(f"load (copied) / reading the bytes into fresh memory: {ours['copy_load_s'] / ours['read_s']:.2f} "
          f"of {ours['read_s']:.2f} s")


if __name__ == "__main__":
    main()
