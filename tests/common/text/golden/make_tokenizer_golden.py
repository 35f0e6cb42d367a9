"""Writes <variant>.jsonl next to this script, from the toy tokenizer and from two variants of it, and the
variants' <variant>.tokenizer.json.

Versions used: tokenizers 0.23.3, Python 3.11. Rows: text, add_special_tokens, ids, decoded,
decoded_skip_special; and decode_ids with decode_ids_text, random ids that need not be valid UTF-8.
"""

import copy
import json
import pathlib
import random

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
TOY = json.loads((HERE.parent / "data/qwen2_toy/tokenizer.json").read_text())
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = (
    "lower newer low er l o we're DON'T I'll 'S '\u017f 's 'Ve 123 4567 3.14 na\u00efve caf\u00e9 e\u0301"
    " \ud55c\uad6d \u1112\u1161\u11ab \u65e5\u672c\u8a9e \u0939\u093f \U0001f600 \U0001f469\u200d\U0001f467"
    " \u00bd \u2167 \u03d3 \u03d2\u0301 \u0344 \u0f73\u0f71 \u1ac3\u0301 \U00011935\U00011930 \U0002ebf0"
    " \u2003 \u00a0 \u0085 \u180e \u200b \ufeff \ufffd \x00 \x1f !? ... --- _ ' '' $x^2$ \\frac{1}{2} ;}"
).split(" ")


def added(content, token_id, **options):
    token = {"id": token_id, "content": content, "special": False, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False}
    return token | options


def variants():
    yield "toy", TOY
    gpt2 = copy.deepcopy(TOY)
    gpt2["normalizer"] = None
    gpt2["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    gpt2["added_tokens"][0]["normalized"] = True
    del gpt2["model"]["type"]
    yield "gpt2_style", gpt2
    llama = copy.deepcopy(TOY)
    llama["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = LLAMA3
    llama["model"]["ignore_merges"] = True
    llama["model"]["merges"] = [merge.split(" ") for merge in llama["model"]["merges"][:-4]]
    llama["added_tokens"] = [
        added("<bos>", 270, special=True),
        added("<eos>", 271, special=True, lstrip=True, rstrip=True),
        added("<left>", 272, lstrip=True),
        added("<right>", 273, rstrip=True, normalized=True),
        added("word", 274, single_word=True),
        added("<", 275),
        added("<<", 276),
        added("<<<x", 277),
        added(" sp", 278),
        added("caf\u00e9", 279, normalized=True),
        added("e\u0301<n>", 280, normalized=True),
        added("e\u0301<r>", 281),
        added("ow", 282, normalized=True, single_word=True, lstrip=True),
    ]
    bos, eos = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<bos>", "<eos>"))
    llama["post_processor"] = {
        "type": "Sequence",
        "processors": [
            llama["post_processor"],
            {"type": "TemplateProcessing",
             "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}, eos, bos],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {
                 name: {"id": name, "ids": [i], "tokens": [name]}
                 for name, i in (("<bos>", 270), ("<eos>", 271))}},
        ],
    }
    yield "llama3_style", llama


def random_char(rng):
    limit = rng.choice([0x80, 0x800, 0x10000, 0x30000, 0x110000])
    while True:
        c = rng.randrange(limit)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng, contents):
    parts = []
    for _ in range(rng.randrange(0, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append(rng.choice(contents))
        elif kind < 0.8:
            parts.append(rng.choice(["\n", " ", "  ", "\r\n", "\t", "   ", "'s", "'T", "<", "_"]))
        else:
            parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 5))))
        if rng.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


for name, spec in variants():
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    for token in spec["added_tokens"]:
        token["id"] = tokenizer.token_to_id(token["content"])  # a token of the vocabulary keeps its id
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    if name != "toy":
        members = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in spec.items()]
        (HERE / f"{name}.tokenizer.json").write_text("{\n" + ",\n".join(members) + "\n}\n")
    contents = [token["content"] for token in spec["added_tokens"]]
    rng = random.Random(name)
    with (HERE / f"{name}.jsonl").open("w") as out:
        for number in range(200):
            row = {"text": random_text(rng, contents), "add_special_tokens": number % 3 == 0}
            row["ids"] = tokenizer.encode(row["text"], add_special_tokens=number % 3 == 0).ids
            row["decoded"] = tokenizer.decode(row["ids"], skip_special_tokens=False)
            row["decoded_skip_special"] = tokenizer.decode(row["ids"], skip_special_tokens=True)
            row["decode_ids"] = [rng.randrange(300) for _ in range(rng.randrange(8))]
            row["decode_ids_text"] = tokenizer.decode(row["decode_ids"], skip_special_tokens=False)
            out.write(json.dumps(row) + "\n")
