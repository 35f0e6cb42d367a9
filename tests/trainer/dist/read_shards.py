"""Reads a directory of optimizer shards with PyTorch's reader of Hugging Face checkpoints and compares it with the flat
tensors of a safetensors file.

Usage: read_shards.py SHARDS_DIR EXPECTED.safetensors
"""

import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader


def main():
    shards_dir, expected_path = sys.argv[1:]
    expected = load_file(expected_path)
    stored = HuggingFaceStorageReader(shards_dir).read_metadata().state_dict_metadata
    state = {name: torch.full(entry.size, -1.0) for name, entry in stored.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(shards_dir), no_dist=True)
    assert set(state) == set(expected), set(state) ^ set(expected)
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor.flatten()), name


if __name__ == "__main__":
    main()
