"""Writes tiny random models and what transformers computes with them.

    pip install torch==2.11.0 transformers==5.17 safetensors numpy
    python make_goldens.py <this directory>

For each model a directory with config.json and model.safetensors (as transformers saves them) and
golden.safetensors:
    token_ids [T], cu_seqlens [B+1]   sequences laid one after the other, each run alone
    logits [T, V]                     fp32
    logits_bf16 [T, V]                of the model cast to bf16
    loss_weights [T, V], grad.<name>  gradients of sum(logits * loss_weights) in fp32
"""

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
CASES = {
    "qwen3_tied": (QWEN3, dict(head_dim=8, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3_untied": (QWEN3, dict(head_dim=6, num_key_value_heads=1, tie_word_embeddings=False)),
    "llama_plain": (LLAMA, dict(num_key_value_heads=4)),
    "llama_bias": (LLAMA, dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
}
SEQUENCE_LENGTHS = [1, 7, 20, 3, 12, 7]


def run(model, sequences):
    return torch.cat([model(input_ids=ids[None]).logits[0] for ids in sequences])


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
    for key, parameter in model.named_parameters():
        golden["grad." + key] = parameter.grad.clone()
    with torch.no_grad():
        golden["logits_bf16"] = run(model.to(torch.bfloat16), sequences).float()
    save_file(golden, directory / "golden.safetensors")


if __name__ == "__main__":
    for seed, name in enumerate(CASES):
        write_case(pathlib.Path(sys.argv[1]), name, seed)
