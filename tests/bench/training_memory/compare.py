"""Compares the memory plan with the peak memory of a training step (bin/training_memory_bench).

    ninja -C build/cpu training_memory_bench
    tests/bench/run training_memory [--check] [--only NAME,...]

Each configuration trains a random model of 100 million parameters for one step in a process of its own. The peak of
its resident memory (VmHWM: anonymous memory and the pages of libraries) is compared with the plan's total. With
--check the program ends with 1 unless all are within 10 %. --large trains a model of Qwen3-0.6B's shape on two
responses of 4,096 tokens in a process that may have 12 GiB of private writable memory, touched or not (RLIMIT_DATA).
--gradients trains that model for one step with each setting of trainer.recompute, in both types, and ends with 1
unless the first moments, which are then the gradients times a constant, have the same bits.
--lora trains that model for one step in full and with adapters of rank 16 on all Linear layers, in both types, and
ends with 1 unless the adapters take less than half of the memory and all plans are within 10 %.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from machine import BINARIES, PLAN_TOLERANCE, QWEN3, add_plan_options, compare_plans, must_run, parser_of
MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 768, "intermediate_size": 2048,
    "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True,
    "initializer_range": 0.02, "dtype": "float32"}
# name: rollouts, dtype, recompute, moments, prompts, n, response tokens, tokens of a micro-batch, and the master if it
# is not float32
CASES = {
    "float32": ("given", "float32", "none", "float32", 2, 2, 512, 4096),
    "float32, attention again": ("given", "float32", "attention", "float32", 2, 2, 512, 4096),
    "float32, all again": ("given", "float32", "full", "float32", 2, 2, 512, 4096),
    "float32, short, two micro-batches": ("generated", "float32", "none", "float32", 8, 4, 48, 1024),
    "bfloat16": ("given", "bfloat16", "none", "float32", 2, 2, 512, 4096),
    "bfloat16, attention again, bfloat16 moments": ("given", "bfloat16", "attention", "bfloat16", 2, 1, 1500, 4096),
    "bfloat16, all again, bfloat16 moments": ("given", "bfloat16", "full", "bfloat16", 2, 2, 1500, 8192),
    "bfloat16, short, generated": ("generated", "bfloat16", "none", "bfloat16", 8, 4, 48, 4096),
    "bfloat16, no master": ("generated", "bfloat16", "none", "bfloat16", 8, 4, 48, 1024, "none"),
}


def run(bench, model, rollouts, limit_gib, settings):
    """Returns the bench's numbers."""
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "config.json").write_text(json.dumps(model), encoding="utf-8")
        command = [bench, directory, rollouts, limit_gib, *(f"{key}={value}" for key, value in settings.items())]
        return must_run(command, dict(os.environ, OMP_WAIT_POLICY="passive"))


def settings_of(dtype, recompute, moments, prompts, n, response_tokens, micro_batch_tokens, master="float32"):
    return {"student.dtype": dtype, "trainer.recompute": recompute, "optimizer.moments": moments,
            "optimizer.master": master,
            "data.train_batch_size": prompts, "trainer.mini_batch_size": prompts, "rollout.n": n,
            "data.max_prompt_length": 16, "data.max_response_length": response_tokens,
            "trainer.micro_batch_tokens": micro_batch_tokens, "trainer.head_workspace_mb": 64, "teacher.top_k": 16}


def same_gradients(bench, model):
    """Checks that recomputation does not change a bit of the gradients of a model at its real size."""
    same = True
    print("| configuration | peak, MiB | norm of the gradients | SHA-256 of the first moments |\n|---|---|---|---|")
    for dtype in ("bfloat16", "float32"):
        hashes = set()
        for recompute in ("none", "attention", "full"):
            settings = settings_of(dtype, recompute, "float32", 2, 2, 176, 384)
            result = run(bench, model, "given", 0, settings)
            hashes.add(result["moments_sha256"])
            print(f"| {dtype}, {recompute} | {result['peak_bytes'] / 2**20:.0f} | {result['loss/grad_norm']!r} | "
                  f"{result['moments_sha256'][:16]} |", flush=True)
        same = same and len(hashes) == 1
    return same


def adapters_take_less(bench, model):
    """Compares the memory of adapters with that of training all weights."""
    good = True
    print("| configuration | planned, MiB | peak, MiB | planned / peak | of the full run's peak |\n|---|---|---|---|---|")
    for dtype in ("bfloat16", "float32"):
        peaks = {}
        for rank in (0, 16):
            settings = settings_of(dtype, "none", "float32", 2, 2, 176, 384)
            result = run(bench, model, "generated", 0, settings | {"student.lora.rank": rank})
            planned, peak = result["planned_bytes"], result["peak_bytes"]
            peaks[rank] = peak
            print(f"| {dtype}, {f'rank {rank}' if rank else 'all weights'} | {planned / 2**20:.0f} | {peak / 2**20:.0f} | "
                  f"{planned / peak:.3f} | {peak / peaks[0]:.3f} |", flush=True)
            good = good and abs(planned / peak - 1) <= PLAN_TOLERANCE
        good = good and peaks[16] < 0.5 * peaks[0]
    return good


def main():
    parser = parser_of("training_memory", __doc__)
    parser.add_argument("--bench", default=str(BINARIES / "training_memory_bench"))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--lora", action="store_true")
    add_plan_options(parser)
    args = parser.parse_args()
    qwen3 = json.loads(QWEN3.read_text(encoding="utf-8"))
    if args.gradients:
        if not same_gradients(args.bench, qwen3):
            sys.exit("recomputation changed the gradients")
        return
    if args.lora:
        if not adapters_take_less(args.bench, qwen3):
            sys.exit("adapters take half of the full run's memory or more, or a plan is more than 10 % off")
        return
    if args.large:
        settings = settings_of("bfloat16", "auto", "bfloat16", 2, 1, 4096, "auto")
        result = run(args.bench, qwen3, "given", 12, settings)
        print(json.dumps(result, indent=1))
        if result["updates"] != 1 or result["peak_bytes"] > 12 << 30:
            sys.exit("the step did not train, or took more than 12 GiB")
        return

    def measure(case):
        rollouts, *sizes = case
        result = run(args.bench, MODEL, rollouts, 0, settings_of(*sizes))
        return result["planned_bytes"], result["peak_bytes"], json.dumps(result, indent=1)

    compare_plans(args, CASES, measure)


if __name__ == "__main__":
    main()
