"""Writes adapters of the tiny models beside this file, as PEFT writes them, and PEFT's results.

    pip install torch==2.11.0 transformers==5.17 peft==0.21.2 safetensors numpy
    python make_lora_goldens.py <this directory> [<case> ...]

Each case NAME is a directory lora_NAME with PEFT's adapter_config.json and
adapter_model.safetensors, all of whose tensors are random (a new adapter's B would be zero), and
golden.safetensors:
    token_ids [T], cu_seqlens [B+1]   those of the model's own golden.safetensors
    logits [T, V]                     float32, of the model with the adapter
    loss_weights [T, V], grad.<name>  gradients of sum(logits * loss_weights) by the adapter's
                                      tensors, whose names are those of the file
    merged.<name>                     the weights that merge_and_unload changes
"""

import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

# NAME: the model and the arguments of LoraConfig.
CASES = {
    "qwen3_untied": ("qwen3_untied", dict(r=3, lora_alpha=8, target_modules="all-linear")),
    "llama_bias": ("llama_bias", dict(r=4, lora_alpha=4, init_lora_weights="gaussian",
                                      target_modules=["q_proj", "v_proj", "down_proj"])),
    "qwen3_moe": ("qwen3_moe", dict(r=2, lora_alpha=3.5, use_rslora=True,
                                    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "qwen2_tied": ("qwen2_tied", dict(r=1, lora_alpha=16, layers_to_transform=[1],
                                      target_modules=["o_proj", "gate_proj"])),
    "saved_qwen2_tied": ("qwen2_tied", dict(r=2, lora_alpha=4, target_modules=["v_proj"],
                                            modules_to_save=["lm_head", "input_layernorm"],
                                            ensure_weight_tying=True)),
    "saved_qwen3_untied": ("qwen3_untied", dict(r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"],
                                                modules_to_save=["norm", "lm_head", "embed_tokens"])),
}


def logits_of(model, ids, cu_seqlens):
    rows = [model(input_ids=ids[begin:end].unsqueeze(0)).logits[0]
            for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    return torch.cat(rows)


def write_case(folder, name):
    base, arguments = CASES[name]
    torch.manual_seed(sorted(CASES).index(name))
    golden = load_file(folder / base / "golden.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / base, dtype=torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **arguments)
    model = peft.get_peft_model(model, config).eval()
    factors = {key: value for key, value in model.named_parameters() if value.requires_grad}
    for value in factors.values():
        value.data.normal_(0, 0.3)

    ids, cu_seqlens = golden["token_ids"], golden["cu_seqlens"].tolist()
    logits = logits_of(model, ids, cu_seqlens)
    weights = torch.randn_like(logits)
    (logits * weights).sum().backward()
    out = {"token_ids": ids, "cu_seqlens": golden["cu_seqlens"], "logits": logits.detach(),
           "loss_weights": weights}
    for key, value in factors.items():
        stored = key.replace(".default", "").replace(".modules_to_save", "")
        out["grad." + stored] = value.grad.clone()

    target = folder / f"lora_{name}"
    target.mkdir(exist_ok=True)
    model.save_pretrained(target)
    (target / "README.md").unlink(missing_ok=True)
    # The tests put the base's real place here.
    path = target / "adapter_config.json"
    stored = json.loads(path.read_text())
    stored["base_model_name_or_path"] = base
    path.write_text(json.dumps(stored) + "\n")

    merged = model.merge_and_unload().state_dict()
    for key, value in merged.items():
        if not torch.equal(value, before[key]):
            out["merged." + key] = value
    save_file({key: value.contiguous().clone() for key, value in out.items()},
              target / "golden.safetensors")
    print(name, len(factors), "tensors")


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        write_case(folder, name)


main()
