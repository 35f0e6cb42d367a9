"""Writes the parameter counts by transformers for a folder of published configurations.

    pip install torch==2.11.0 transformers==5.17
    python make_parameter_counts.py <folder of config directories> > parameter_counts.json

No weights are made: the models live on the meta device. A tied output head counts once.
"""

import json
import pathlib
import sys

import torch
import transformers

counts = {}
root = pathlib.Path(sys.argv[1])
for path in sorted(root.glob("*/config*.json")):
    config = json.loads(path.read_text())
    config_class = transformers.CONFIG_MAPPING[config["model_type"]]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_class.from_dict(config))
    model.tie_weights()
    counts[str(path.relative_to(root))] = sum(p.numel() for p in model.parameters())
json.dump({"transformers": transformers.__version__, "num_parameters": counts}, sys.stdout, indent=1)
print()
