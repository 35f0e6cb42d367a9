"""Loads a model directory with transformers, as a user of an export would, and writes its logits.

    pip install torch==2.11.0 transformers==5.17 safetensors
    python run_export.py <model directory> <input.safetensors> <output.safetensors>

The input has token_ids [B, T].
"""

import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

model_dir, input_path, output_path = sys.argv[1:]
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    model_dir, dtype="auto", output_loading_info=True, local_files_only=True)
for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
    if info[problem]:
        sys.exit(f"{problem}: {info[problem]}")
ids = load_file(input_path)["token_ids"]
with torch.no_grad():
    save_file({"logits": model(input_ids=ids).logits.float().contiguous()}, output_path)
