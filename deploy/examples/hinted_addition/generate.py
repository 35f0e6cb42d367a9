#!/usr/bin/env python3
"""Makes the self-distillation experiment's data: addition with and without the worked solution in the prompt.

    generate.py OUT_DIR [--seed 0] [--train 2880] [--val 500] [--sft 25600]

The task is 3-digit addition with the scratchpad, the connective words and the tokenizer of the addition
experiment beside it. A solution has a period instead of each word:

    prompt       877+969=
    solution     .7+9+0=16.7+6+1=14.8+9+1=18#1846
    with it      .7+9+0=16.7+6+1=14.8+9+1=18#1846;877+969=
    response      so7+9+0=16 then7+6+1=14 the8+9+1=18#1846     (then <eos>, which training appends)

Half of the supervised rows have the solution in the prompt and a clean response. In the response of the other
half each token after the first word is replaced by uniform noise with a probability of 5 %, so that the model
knows the task and makes mistakes.

Written to OUT_DIR:
    train.jsonl, val.jsonl    {"prompt", "solution", "answer"}; no val problem is in any other file
    student_sft.jsonl         {"prompt", "response"}, in both forms
    tokenizer/                that of the addition experiment
"""

import argparse
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "addition"))
import generate as addition  # noqa: E402

NOISE = 0.05


def prompt_text(a, b):
    return addition.prompt_text(a, b).removeprefix(addition.BOS)


def solution_text(tokens):
    return "".join("." if token.startswith(" ") else token for token in tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=2880, help="prompts to train on (80 steps of 36)")
    parser.add_argument("--val", type=int, default=500, help="held-out problems")
    parser.add_argument("--sft", type=int, default=25600, help="supervised examples (400 steps of 64)")
    args = parser.parse_args()

    addition.NUM_DIGITS = 3
    addition.write_tokenizer(args.out_dir / "tokenizer")
    rng = {name: random.Random(f"{args.seed} hinted {name}") for name in ("val", "train", "sft")}
    words, cumulative = list(addition.CONNECTIVES), addition.zipf_weights(len(addition.CONNECTIVES))
    val = addition.fresh_problems(rng["val"], args.val, set())
    for name, pairs in (("val", val), ("train", addition.fresh_problems(rng["train"], args.train, set(val)))):
        rows = []
        for a, b in pairs:
            tokens = addition.response_tokens(rng[name], a, b, words, cumulative)
            rows.append({"prompt": prompt_text(a, b), "solution": solution_text(tokens),
                         "answer": addition.answer_text(a, b)})
        addition.write_jsonl(args.out_dir / f"{name}.jsonl", rows)
    rows = []
    alphabet = list("0123456789")
    for number, (a, b) in enumerate(addition.fresh_problems(rng["sft"], args.sft, set(val))):
        tokens = addition.response_tokens(rng["sft"], a, b, words, cumulative)
        prompt = prompt_text(a, b)
        if number % 2:
            prompt = f"{solution_text(tokens)};{prompt}"
        else:
            tokens = tokens[:1] + [alphabet[addition.uniform(rng["sft"], len(alphabet))]
                                   if rng["sft"].random() < NOISE else token for token in tokens[1:]]
        rows.append({"prompt": prompt, "response": "".join(tokens)})
    addition.write_jsonl(args.out_dir / "student_sft.jsonl", rows)


if __name__ == "__main__":
    main()
