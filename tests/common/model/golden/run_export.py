"""Loads a model directory with transformers, or an adapter's with PEFT, as a user of an export would, and writes its
logits.

    pip install torch==2.11.0 transformers==5.17 peft==0.21.2 safetensors
    python run_export.py <model directory> <input.safetensors> <output.safetensors>

The input has token_ids [B, T].
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

model_dir, input_path, output_path = sys.argv[1:]
if (pathlib.Path(model_dir) / "adapter_config.json").exists():
    import peft

    config = peft.PeftConfig.from_pretrained(model_dir)
    base = transformers.AutoModelForCausalLM.from_pretrained(config.base_model_name_or_path, dtype="auto")
    model = peft.get_peft_model(base, config)
    stored = load_file(pathlib.Path(model_dir) / "adapter_model.safetensors")
    names = {name.replace(".default", "") for name in model.state_dict() if ".lora_" in name}
    if names != set(stored):
        sys.exit(f"PEFT and the file have different tensors: {sorted(names ^ set(stored))}")
    problems = peft.set_peft_model_state_dict(model, stored).unexpected_keys
    if problems:
        sys.exit(f"unexpected_keys: {problems}")
    model = peft.AutoPeftModelForCausalLM.from_pretrained(model_dir, dtype="auto")
else:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype="auto", output_loading_info=True, local_files_only=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info[problem]:
            sys.exit(f"{problem}: {info[problem]}")
ids = load_file(input_path)["token_ids"]
with torch.no_grad():
    save_file({"logits": model(input_ids=ids).logits.float().contiguous()}, output_path)
