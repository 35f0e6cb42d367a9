"""Writes a model directory of a Qwen3ForCausalLM as a GGUF file for llama.cpp, without a tokenizer.

    python gguf_of.py MODEL_DIR (bfloat16 | float32) FILE.gguf

Matrices keep their bits (bfloat16) or are widened (float32); norms are float32, as llama.cpp needs
them. It needs numpy, gguf and nothing else.
"""

import json
import pathlib
import sys

import gguf
import numpy as np

# llama.cpp's names of a layer's tensors, by Hugging Face's.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in OUTER:
        return OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def bfloat16_tensors(path):
    """Yields (name, shape, uint16 array) of a safetensors file of bfloat16."""
    header_size = int(np.fromfile(path, np.uint64, 1)[0])
    with open(path, "rb") as file:
        file.seek(8)
        header = json.loads(file.read(header_size))
    data = np.memmap(path, np.uint8, "r", offset=8 + header_size)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            sys.exit(f"{path}: {name} is {entry['dtype']}: only BF16 is written")
        begin, end = entry["data_offsets"]
        yield name, entry["shape"], data[begin:end].view(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def main():
    model_dir, dtype, output = sys.argv[1:]
    config = json.loads((pathlib.Path(model_dir) / "config.json").read_text())
    writer = gguf.GGUFWriter(output, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    # transformers 5 has rope_theta in rope_parameters.
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    is_float32 = dtype == "float32"
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if is_float32 else gguf.LlamaFileType.MOSTLY_BF16)
    for path in sorted(pathlib.Path(model_dir).glob("*.safetensors")):
        for name, shape, bits in bfloat16_tensors(path):
            if is_float32 or len(shape) == 1:
                writer.add_tensor(gguf_name(name), widened(bits).reshape(shape))
            else:
                writer.add_tensor(gguf_name(name), bits.reshape(shape).view(np.uint8),
                                  raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
