#!/usr/bin/env python3
"""Writes a Llama of 0.1 M parameters with random weights, the same bytes on every machine.

    make_student.py OUT_DIR      config.json and model.safetensors, in Hugging Face's layout

It is smaller than its teacher stories260K (hidden 64, 5 layers), and has the same vocabulary of 512.
"""

import array
import json
import math
import pathlib
import random
import struct
import sys

SEED = 7
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 512,
}


def tensor_shapes():
    """Returns {name: shape}, with the names of LlamaForCausalLM. A matrix is [outputs, inputs]."""
    hidden, inner, size = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * size, CONFIG["num_key_value_heads"] * size
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (queries, hidden),
            prefix + "self_attn.k_proj.weight": (keys, hidden),
            prefix + "self_attn.v_proj.weight": (keys, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, queries),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def normal(rng):
    """Draws by Box and Muller's method, because only random() is the same in every version of Python."""
    return math.sqrt(-2 * math.log(1 - rng.random())) * math.cos(2 * math.pi * rng.random())


def main():
    out_dir = pathlib.Path(sys.argv[1])
    out_dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    header, data = {}, bytearray()
    for name, shape in tensor_shapes().items():
        if len(shape) == 1:  # norms start as the identity
            values = [1.0] * shape[0]
        else:
            values = [CONFIG["initializer_range"] * normal(rng) for _ in range(math.prod(shape))]
        begin = len(data)
        floats = array.array("f", values)
        if sys.byteorder == "big":
            floats.byteswap()
        data += floats.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    (out_dir / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (out_dir / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
