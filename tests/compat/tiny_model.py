"""Writes a small random model with a tokenizer and a chat template, which taopd-teacher and vLLM both
serve.

Usage: tiny_model.py DIRECTORY
"""

import hashlib
import json
import pathlib
import random
import struct
import sys

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 2, 2, 1, 32, 128  # vLLM wants head_dim >= 32
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("e", "r"), ("\u0120", "t"), ("\u0120", "the"), ("o", "n"),
          ("\u0120", "a"), ("r", "e"), ("an", "d"), ("\u0120", "and"), ("o", "u"), ("s", "t"), ("in", "g"), ("\u0120", "\u00f0")]
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content }}"
    "{%- if not loop.last or message.role != 'assistant' or add_generation_prompt %}{{- '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}"
    "{%- endif %}")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_characters():
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {byte: chr(byte) for byte in plain}
    for i, byte in enumerate(b for b in range(256) if b not in characters):
        characters[byte] = chr(256 + i)
    return [characters[byte] for byte in range(256)]


def vocabulary():
    tokens = byte_characters() + [a + b for a, b in MERGES]
    return {token: i for i, token in enumerate(tokens)}


def tokenizer():
    vocab = vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for i, text in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": vocab, "merges": [list(pair) for pair in MERGES]},
    }


def shapes(vocab_size, tied):
    yield "model.embed_tokens.weight", (vocab_size, HIDDEN), 1.0
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,), None
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,), None
        yield prefix + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN), 0.2
        yield prefix + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN), 0.2
        yield prefix + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN), 0.2
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM), 0.2
        yield prefix + "self_attn.q_norm.weight", (HEAD_DIM,), None
        yield prefix + "self_attn.k_norm.weight", (HEAD_DIM,), None
        yield prefix + "mlp.gate_proj.weight", (INNER, HIDDEN), 0.2
        yield prefix + "mlp.up_proj.weight", (INNER, HIDDEN), 0.2
        yield prefix + "mlp.down_proj.weight", (HIDDEN, INNER), 0.2
    yield "model.norm.weight", (HIDDEN,), 0.25  # the distributions are neither flat nor certain
    if not tied:
        yield "lm_head.weight", (vocab_size, HIDDEN), 1.0


def write_weights(path, vocab_size, seed, tied):
    generator = random.Random(seed)
    header, blobs, offset = {}, [], 0
    for name, shape, scale in shapes(vocab_size, tied):
        count = 1
        for size in shape:
            count *= size
        if scale is None or name == "model.norm.weight":
            values = [scale or 1.0] * count
        else:
            values = [generator.gauss(0.0, scale) for _ in range(count)]
        blob = struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write(directory, seed=20, tied=False):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    end_of_text = len(vocabulary())
    vocab_size = end_of_text + len(SPECIAL)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocab_size,
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": INNER,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": tied, "attention_bias": False, "torch_dtype": "float32",
        "bos_token_id": end_of_text, "eos_token_id": end_of_text + 2,
    }
    tokenizer_config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
                        "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None,
                        "add_prefix_space": False, "model_max_length": 256, "chat_template": TEMPLATE}
    generation = {"eos_token_id": [end_of_text + 2, end_of_text], "temperature": 0.8, "top_k": 40, "top_p": 0.95}
    for name, content in (("config", config), ("tokenizer", tokenizer()),
                          ("tokenizer_config", tokenizer_config), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1))
    write_weights(directory / "model.safetensors", vocab_size, seed, tied)


def sha256(directory):
    """Of all files, by name: tells whether stored answers are about this model."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(directory).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    write(sys.argv[1])
