#!/usr/bin/env python3
"""Writes train.jsonl and heldout.jsonl: stories that stories260K itself tells at temperature 1, as token ids.

    make_data.py MODEL_DIR OUT_DIR       (numpy 2.4.6, safetensors 0.8.0; the committed files are its output)

train.jsonl    512 rows {"prompt_ids"}: BOS and the first 16 tokens of a story
heldout.jsonl   96 rows {"prompt_ids", "response_ids"}: BOS and 16 tokens, and the 64 tokens that follow

The model runs in float64 and the sampling inverts the cumulative distribution at numbers of
random.Random, so that the output does not depend on the library's version.
"""

import json
import pathlib
import random
import sys

import numpy
from safetensors.numpy import load_file

BOS = 1
PROMPT_TOKENS = 16
RESPONSE_TOKENS = 64
NUM_TRAIN = 512
NUM_HELDOUT = 96
SEED = 20


def rms_norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Llama:
    """Decoding of a batch of sequences of equal length, with a KV cache. B sequences, N heads of size D."""

    def __init__(self, model_dir):
        self.config = json.loads(pathlib.Path(model_dir, "config.json").read_text(encoding="utf-8"))
        tensors = load_file(pathlib.Path(model_dir, "model.safetensors"))
        self.weights = {name.removeprefix("model."): value.astype(numpy.float64) for name, value in tensors.items()}
        self.cache = {}
        self.position = 0

    def rotate(self, x_BND):
        size = x_BND.shape[-1]
        frequency = self.config["rope_theta"] ** (-numpy.arange(0, size, 2) / size)
        angle = numpy.tile(self.position * frequency, 2)
        half = numpy.concatenate((-x_BND[..., size // 2:], x_BND[..., : size // 2]), axis=-1)
        return x_BND * numpy.cos(angle) + half * numpy.sin(angle)

    def attention(self, layer, x_BH):
        config, prefix = self.config, f"layers.{layer}.self_attn."
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        size = config["hidden_size"] // heads
        project = lambda name, n: (x_BH @ self.weights[f"{prefix}{name}.weight"].T).reshape(len(x_BH), n, size)
        query = self.rotate(project("q_proj", heads))
        keys, values = self.cache.setdefault(layer, ([], []))
        keys.append(self.rotate(project("k_proj", kv_heads)))
        values.append(project("v_proj", kv_heads))
        key_BTND = numpy.stack(keys, 1).repeat(heads // kv_heads, axis=2)
        value_BTND = numpy.stack(values, 1).repeat(heads // kv_heads, axis=2)
        score_BNT = numpy.einsum("bnd,btnd->bnt", query, key_BTND) / numpy.sqrt(size)
        weight_BNT = numpy.exp(score_BNT - score_BNT.max(-1, keepdims=True))
        weight_BNT /= weight_BNT.sum(-1, keepdims=True)
        mixed = numpy.einsum("bnt,btnd->bnd", weight_BNT, value_BTND).reshape(len(x_BH), -1)
        return mixed @ self.weights[prefix + "o_proj.weight"].T

    def step(self, ids_B):
        """Returns the probabilities of the next token, [B, V]."""
        eps, weights = self.config["rms_norm_eps"], self.weights
        x = weights["embed_tokens.weight"][ids_B]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            x = x + self.attention(layer, rms_norm(x, weights[prefix + "input_layernorm.weight"], eps))
            h = rms_norm(x, weights[prefix + "post_attention_layernorm.weight"], eps)
            gate = h @ weights[prefix + "mlp.gate_proj.weight"].T
            up = h @ weights[prefix + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + numpy.exp(-gate)) * up) @ weights[prefix + "mlp.down_proj.weight"].T
        self.position += 1
        head = weights.get("lm_head.weight", weights["embed_tokens.weight"])
        logits = rms_norm(x, weights["norm.weight"], eps) @ head.T
        p = numpy.exp(logits - logits.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)


def sample_stories(model_dir, count, num_tokens, rng):
    """Returns [count][1 + num_tokens] token ids that start with BOS."""
    model = Llama(model_dir)
    stories = [[BOS] for _ in range(count)]
    for _ in range(num_tokens):
        cumulative = numpy.cumsum(model.step(numpy.array([story[-1] for story in stories])), axis=-1)
        for story, row in zip(stories, cumulative):
            story.append(min(int(numpy.searchsorted(row, rng.random(), side="right")), len(row) - 1))
    return stories


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="ascii")


def main():
    model_dir, out_dir = sys.argv[1], pathlib.Path(sys.argv[2])
    rng = random.Random(SEED)
    eos = json.loads(pathlib.Path(model_dir, "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    split = 1 + PROMPT_TOKENS
    openings = sample_stories(model_dir, NUM_TRAIN, PROMPT_TOKENS, rng)
    write_jsonl(out_dir / "train.jsonl", ({"prompt_ids": story} for story in openings if eos not in story))
    taken = {tuple(story) for story in openings}
    stories = sample_stories(model_dir, 2 * NUM_HELDOUT, PROMPT_TOKENS + RESPONSE_TOKENS, rng)
    held_out = [s for s in stories if eos not in s and BOS not in s[1:] and tuple(s[:split]) not in taken]
    write_jsonl(out_dir / "heldout.jsonl",
                ({"prompt_ids": s[:split], "response_ids": s[split:]} for s in held_out[:NUM_HELDOUT]))


if __name__ == "__main__":
    main()
