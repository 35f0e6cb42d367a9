#!/usr/bin/env python3
"""Makes the addition experiment's data and tokenizer: the same bytes for the same seed on every machine.

    generate.py OUT_DIR [--seed 0] [--train 4320] [--val 1000] [--teacher-sft 28800] [--student-sft 26880]
                [--teacher-dialect own]

The task is 4-digit addition with a worked scratchpad, least significant column first, all of fixed width:

    prompt     <bos>6877+5969=
    response    so7+9+0=16 then7+6+1=14 the8+9+1=18 by6+5+1=12#12846     (then <eos>, which training appends)

Each column starts with one of 48 connective words, any of which would do. The teacher takes the word of
rank r with probability proportional to r^-1.2: a long tail beyond any small top-k. The student's data
permutes the ranks (a dialect) and replaces 3 % of the response's tokens by uniform noise.

Written to OUT_DIR:
    train.jsonl, val.jsonl                  {"prompt", "answer"}; no val problem is in any other file
    teacher_sft.jsonl, student_sft.jsonl    {"prompt", "response"}
    tokenizer/                              tokenizer.json (byte-level BPE, 128 ids), tokenizer_config.json
"""

import argparse
import json
import pathlib
import random

NUM_DIGITS = 4
ZIPF_EXPONENT = 1.2
STUDENT_NOISE = 0.03
BOS, EOS = "<bos>", "<eos>"

# In this order they are the teacher's ranks 1, 2, ...
CONNECTIVES = (
    "so then now and thus the this that there here to too in on at as by if it is its or of "
    "one any all add sum see set we well do go get got use us up no not my me he her be off an"
).split()

SYMBOLS = "0123456789+=#"
# These are in the vocabulary and never in the data. With the letters and the halves of merges, they are
# more than half of the 128 ids.
UNUSED_SYMBOLS = "\n.,-*/():;?!'\""


# ---- Tokenizer ----------------------------------------------------------------------------------

def byte_level(text):
    """Returns the text in GPT-2's byte-level alphabet. It knows only the two ASCII characters that differ here."""
    return text.replace(" ", "\u0120").replace("\n", "\u010a")


def vocabulary_and_merges():
    """A word is spelled " so" and grows from its left end: " s", " so". Each prefix is one merge, so that
    every connective is one token whatever stands beside it, and digits and symbols never merge."""
    letters = sorted({letter for word in CONNECTIVES for letter in word} | set("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = [byte_level(symbol) for symbol in list(SYMBOLS) + [" "] + letters + list(UNUSED_SYMBOLS)]
    merges = []
    for word in CONNECTIVES:
        for end in range(1, len(word) + 1):
            left, right = byte_level(" " + word[: end - 1]), word[end - 1]
            if left + right not in vocabulary:
                vocabulary.append(left + right)
                merges.append(f"{left} {right}")
    return vocabulary, merges


def tokenizer_json():
    vocabulary, merges = vocabulary_and_merges()
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": len(vocabulary) + i, "content": token, **special} for i, token in enumerate((BOS, EOS))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(vocabulary)},
            "merges": merges,
        },
    }


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": EOS,
    "model_max_length": 128,
    "clean_up_tokenization_spaces": False,
}


def write_tokenizer(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer_json()), ("tokenizer_config.json", TOKENIZER_CONFIG)):
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


# ---- Problems -----------------------------------------------------------------------------------

def uniform(rng, count):
    """Returns an integer in [0, count). Only random() gives the same numbers in every version of Python."""
    return int(rng.random() * count)


def zipf_weights(count):
    """Returns the cumulative probabilities of the ranks 1 to count."""
    weights = [rank ** -ZIPF_EXPONENT for rank in range(1, count + 1)]
    total, cumulative = sum(weights), []
    for weight in weights:
        cumulative.append((cumulative[-1] if cumulative else 0.0) + weight / total)
    return cumulative


def sample_word(rng, words, cumulative):
    point = rng.random()
    return next((word for word, limit in zip(words, cumulative) if point < limit), words[-1])


def problem(rng):
    low, high = 10 ** (NUM_DIGITS - 1), 10**NUM_DIGITS
    return low + uniform(rng, high - low), low + uniform(rng, high - low)


def prompt_text(a, b):
    return f"{BOS}{a}+{b}="


def answer_text(a, b):
    return f"{a + b:0{NUM_DIGITS + 1}d}"


def response_tokens(rng, a, b, words, cumulative):
    """Returns the scratchpad as a list of token texts, without the final <eos>."""
    tokens, carry = [], 0
    for column in range(NUM_DIGITS):
        digit_a, digit_b = a // 10**column % 10, b // 10**column % 10
        total = digit_a + digit_b + carry
        tokens.append(" " + sample_word(rng, words, cumulative))
        tokens += list(f"{digit_a}+{digit_b}+{carry}={total:02d}")
        carry = total // 10
    return tokens + list("#" + answer_text(a, b))


def shuffled(rng, items):
    items = list(items)
    for i in range(len(items) - 1, 0, -1):
        j = uniform(rng, i + 1)
        items[i], items[j] = items[j], items[i]
    return items


# ---- Files --------------------------------------------------------------------------------------

def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")


def fresh_problems(rng, count, taken):
    """Returns `count` problems that are not in `taken`."""
    found = []
    while len(found) < count:
        pair = problem(rng)
        if pair not in taken:
            found.append(pair)
    return found


def sft_rows(rng, pairs, dialects, noise):
    """Rows take the dialects in turn."""
    cumulative = zipf_weights(len(CONNECTIVES))
    alphabet = list(SYMBOLS) + [" " + word for word in CONNECTIVES]
    for i, (a, b) in enumerate(pairs):
        tokens = response_tokens(rng, a, b, dialects[i % len(dialects)], cumulative)
        tokens = [alphabet[uniform(rng, len(alphabet))] if rng.random() < noise else t for t in tokens]
        yield {"prompt": prompt_text(a, b), "response": "".join(tokens)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=4320, help="prompts to train on (120 steps of 36)")
    parser.add_argument("--val", type=int, default=1000, help="held-out problems")
    parser.add_argument("--teacher-sft", type=int, default=28800, help="the teacher's examples (450 steps of 64)")
    parser.add_argument("--student-sft", type=int, default=26880, help="the student's examples (420 steps of 64)")
    parser.add_argument("--teacher-dialect", choices=("own", "mixed", "student"), default="own",
                        help="the ranks of the teacher's connectives: its own, the student's, or each in half of the rows")
    args = parser.parse_args()

    write_tokenizer(args.out_dir / "tokenizer")

    # Each file has a random stream of its own, so more rows in one change no other.
    rng = {name: random.Random(f"{args.seed} {name}") for name in ("val", "train", "teacher", "student", "dialect")}
    val = fresh_problems(rng["val"], args.val, set())
    taken = set(val)
    for name, pairs in (("val", val), ("train", fresh_problems(rng["train"], args.train, taken))):
        rows = ({"prompt": prompt_text(a, b), "answer": answer_text(a, b)} for a, b in pairs)
        write_jsonl(args.out_dir / f"{name}.jsonl", rows)
    dialect = shuffled(rng["dialect"], CONNECTIVES)
    own = list(CONNECTIVES)
    of_teacher = {"own": (own,), "mixed": (own, dialect), "student": (dialect,)}[args.teacher_dialect]
    for name, count, dialects, noise in (("teacher", args.teacher_sft, of_teacher, 0.0),
                                         ("student", args.student_sft, (dialect,), STUDENT_NOISE)):
        pairs = fresh_problems(rng[name], count, taken)
        write_jsonl(args.out_dir / f"{name}_sft.jsonl", sft_rows(rng[name], pairs, dialects, noise))


if __name__ == "__main__":
    main()
