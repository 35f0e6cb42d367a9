"""Writes tiny random models and the results of transformers for them.

    pip install torch==2.11.0 transformers==5.17 safetensors numpy
    python make_goldens.py <this directory> [<case> ...]

Each model gets a directory with config.json (on one line) and model.safetensors, as transformers saves them, and
golden.safetensors:
    token_ids [T], cu_seqlens [B+1]   sequences one after the other, each run alone
    logits [T, V]                     float32
    logits_bf16 [T, V]                of the model cast to bfloat16
    loss_weights [T, V], grad.<name>  gradients of sum(logits * loss_weights) in float32
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

SIZES = dict(vocab_size=26, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=64, eos_token_id=1, bos_token_id=0,
             rope_theta=1000.0)
QWEN3 = (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)
LLAMA = (transformers.LlamaConfig, transformers.LlamaForCausalLM)
QWEN2 = (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)
QWEN3_MOE = (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM)
EXPERTS = dict(head_dim=6, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3,
               moe_intermediate_size=8)


def rope(kind, **more):
    """Sequences have up to 20 tokens, so a context of 16 reaches every branch of a scaling."""
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=1000.0, **more))


CASES = {
    "qwen3_tied": (QWEN3, dict(head_dim=8, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3_untied": (QWEN3, dict(head_dim=6, num_key_value_heads=1, tie_word_embeddings=False)),
    "llama_plain": (LLAMA, dict(num_key_value_heads=4)),
    "llama_bias": (LLAMA, dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "qwen2_tied": (QWEN2, dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen2_window": (QWEN2, dict(num_key_value_heads=2, use_sliding_window=True, sliding_window=5,
                                 max_window_layers=1)),
    "qwen3_window": (QWEN3, dict(head_dim=8, num_key_value_heads=1, use_sliding_window=True,
                                 sliding_window=4,
                                 layer_types=["sliding_attention", "full_attention"])),
    "qwen3_moe": (QWEN3_MOE, dict(EXPERTS, norm_topk_prob=True)),
    "qwen3_moe_mixed": (QWEN3_MOE, dict(EXPERTS, norm_topk_prob=False, num_hidden_layers=4,
                                        decoder_sparse_step=2, mlp_only_layers=[3],
                                        use_sliding_window=True, sliding_window=7,
                                        tie_word_embeddings=True)),
    "llama31": (LLAMA, dict(num_key_value_heads=2, head_dim=16, **rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "llama_linear": (LLAMA, dict(num_key_value_heads=2, **rope("linear", factor=4.0))),
    "llama_dynamic": (LLAMA, dict(num_key_value_heads=2, **rope("dynamic", factor=2.0))),
    "qwen2_yarn": (QWEN2, dict(num_key_value_heads=2, num_attention_heads=2, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=16))),
    "qwen3_yarn_mscale": (QWEN3, dict(head_dim=16, num_key_value_heads=2, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=0.5,
        mscale=0.7, mscale_all_dim=1.0, truncate=False))),
}
SEQUENCE_LENGTHS = [1, 7, 20, 3, 12, 7]


def run(model, sequences):
    return torch.cat([model(input_ids=ids[None]).logits[0] for ids in sequences])


def gradients(model):
    """The gradients by the names of the checkpoint, where every expert has its own matrices."""
    grads = {}
    for key, parameter in model.named_parameters():
        if key.endswith("experts.gate_up_proj"):
            for e, grad in enumerate(parameter.grad):
                gate, up = grad.chunk(2)
                grads[key.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.contiguous()
                grads[key.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.contiguous()
        elif key.endswith("experts.down_proj"):
            for e, grad in enumerate(parameter.grad):
                grads[key.replace("down_proj", f"{e}.down_proj.weight")] = grad.clone()
        else:
            grads[key] = parameter.grad.clone()
    return grads


def write_case(root, name, seed):
    (config_class, model_class), own = CASES[name]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **own}))
    with torch.no_grad():  # far from the initial values, so that every part matters
        for key, parameter in model.named_parameters():
            centre = 1.0 if "norm" in key else 0.0
            parameter.copy_(centre + 0.25 * torch.randn_like(parameter))
    directory = root / name
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text())) + "\n")  # on one line

    sequences = [torch.randint(SIZES["vocab_size"], (n,)) for n in SEQUENCE_LENGTHS]
    logits = run(model, sequences)
    loss_weights = torch.randn_like(logits)
    (logits * loss_weights).sum().backward()
    golden = {
        "token_ids": torch.cat(sequences),
        "cu_seqlens": torch.tensor([0] + SEQUENCE_LENGTHS).cumsum(0),
        "logits": logits.detach(),
        "loss_weights": loss_weights,
    }
    for key, grad in gradients(model).items():
        golden["grad." + key] = grad
    with torch.no_grad():
        golden["logits_bf16"] = run(model.to(torch.bfloat16), sequences).float()
    save_file(golden, directory / "golden.safetensors")


if __name__ == "__main__":
    for seed, name in enumerate(CASES):
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            write_case(pathlib.Path(sys.argv[1]), name, seed)
