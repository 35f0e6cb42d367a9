"""Compares the teacher's memory plan with the peak memory of its process.

    ninja -C build/cpu taopd-teacher engine_bench
    tests/bench/run teacher_memory [--check] [--only NAME;...]

For each configuration a teacher serves a model of random weights: it scores sequences of random tokens and, if it has
a KV pool, generates until every block of the pool has been written. Its plan, which it logs at start, is compared
with the peak of the process's resident memory (VmHWM, which includes the touched pages of mapped files). With --check
the program ends with 1 unless all plans are within 10 % of the peak.
"""

import concurrent.futures
import json
import pathlib
import random
import re
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from machine import BINARIES, QWEN3, Teacher, add_plan_options, compare_plans, make_model, parser_of, processor

QWEN3_06B = json.loads(QWEN3.read_text(encoding="utf-8"))
UNTIED = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 64000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": False,
    "initializer_range": 0.02, "dtype": "bfloat16"}
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 768, "intermediate_size": 2048,
    "moe_intermediate_size": 512, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True, "initializer_range": 0.02,
    "dtype": "bfloat16"}
# name: model, dtype, KV pool, flags
CASES = {
    "Qwen3-0.6B, bfloat16, scores only": (QWEN3_06B, "bfloat16", "0", []),
    "Qwen3-0.6B, bfloat16, a pool of 512 MiB": (QWEN3_06B, "bfloat16", "512MiB", []),
    "Qwen3-0.6B, bfloat16, steps of 4096 tokens": (QWEN3_06B, "bfloat16", "0", ["--max-num-batched-tokens", "4096"]),
    "Qwen3-0.6B, widened to float32, scores only": (QWEN3_06B, "float32", "0", []),
    "untied head, 0.3 B, float16, a pool of 128 MiB": (UNTIED, "float16", "128MiB", []),
    "untied head, 0.3 B, bfloat16, scores only": (UNTIED, "bfloat16", "0", []),
    "32 experts, 0.5 B, bfloat16, a pool of 64 MiB": (EXPERTS, "bfloat16", "64MiB", []),
}


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def use(port, vocab_size, generates):
    """Scores 8 sequences of 1,024 tokens together, and fills the pool."""
    draw = random.Random(1)

    def tokens(count):
        return [draw.randrange(vocab_size) for _ in range(count)]

    post(port, "/get_sequence_logprobs/", {"sequences": [tokens(1024) for _ in range(8)], "prompt_lengths": [1] * 8,
                                           "top_logprobs": 16})
    if not generates:
        return
    bodies = [{"model": "m", "prompt": tokens(256), "max_tokens": 32, "ignore_eos": True, "temperature": 0,
               "return_token_ids": True, "detokenize": False} for _ in range(64)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        for answer in pool.map(lambda body: post(port, "/v1/completions", body), bodies):
            assert len(answer["choices"][0]["token_ids"]) == 32, answer


def measure(options, models, case):
    config, dtype, pool, flags = case
    model = models / config["architectures"][0]
    make_model(options.engine_bench, config, model)
    with tempfile.TemporaryDirectory() as work:
        teacher = Teacher(options.teacher, model, pathlib.Path(work), "--served-model-name", "m", "--dtype", dtype,
                          "--kv-cache-memory-bytes", pool, "--max-model-len", "2048", *flags)
        try:
            use(teacher.ports["http_port"], config["vocab_size"], pool != "0")
            peak = teacher.peak_bytes()
            lines = "".join(line for line in teacher.log_path.open(encoding="utf-8") if " memory " in line)
        finally:
            teacher.stop()
    return int(re.search(r" memory plan .*total_bytes=(\d+)", lines).group(1)), peak, lines


def main():
    parser = parser_of("teacher_memory", __doc__)
    parser.add_argument("--teacher", default=str(BINARIES / "taopd-teacher"))
    parser.add_argument("--engine-bench", default=str(BINARIES / "engine_bench"), help="makes the weights")
    add_plan_options(parser)
    options = parser.parse_args()
    print(f"{processor()}\n")
    with tempfile.TemporaryDirectory() as models:
        compare_plans(options, CASES, lambda case: measure(options, pathlib.Path(models), case))


if __name__ == "__main__":
    main()
