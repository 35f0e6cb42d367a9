"""The trainer's tokenize and render commands against HF tokenizers and jinja2, on random input.

    check_text.py TRAINER SHARED_DATA [--strings N] [--seed S]

Versions: tests/requirements-oracle.txt. Exit code 77 (skipped) where the libraries or data are absent.
"""

import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys

try:
    import jinja2.ext
    import tokenizers
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOKENIZERS = ("qwen3", "qwen2.5", "llama3.1", "gpt2", "deepseek-r1-distill-qwen")
# Planes with characters, and where their interesting parts begin.
RANGES = ((0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000),
          (0x10000, 0x20000), (0x20000, 0x40000), (0xE0000, 0xE0200), (0x40000, 0x110000))
WORDS = ("the", "Hello", "I'm", "DON'T", "'ll", "we've", "1234567", "3.14", "\u0130stanbul", "na\u00efve", "e\u0301",
         "\u1112\u1161\u11ab", "\u65e5\u672c", "\U0001f469\u200d\U0001f467", "\u2003", "\u0085", "\r\n", "\n\n ", "\t\t",
         "    ", "</think>", "<|im_start|>", "\\frac{1}{2}", "def f(x):", "\u017fs", "'\u017f", "\u180e", "\x00")


def answers(command, lines):
    done = subprocess.run(command, input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True,
                          text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.split("\n") if line]
    if len(rows) != len(lines):
        sys.exit(f"{command}: {len(rows)} answers to {len(lines)} lines\n{done.stderr}")
    return rows


def random_text(rng, special):
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.42:
            parts.append(rng.choice(special))
        else:
            low, high = rng.choice(RANGES)
            for _ in range(rng.randrange(1, 8)):
                c = rng.randrange(low, high)
                parts.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
        if rng.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def check_tokenizer(trainer, folder, num_strings, seed):
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    special = [token["content"] for token in added] or ["<|endoftext|>"]
    rng = random.Random(f"{folder.name} {seed}")
    lines = [{"text": random_text(rng, special), "add_special_tokens": i % 2 == 0} for i in range(num_strings)]
    num_wrong = 0
    for line, row in zip(lines, answers([trainer, "tokenize", "--tokenizer", str(folder)], lines)):
        encoding = oracle.encode(line["text"], add_special_tokens=line["add_special_tokens"])
        expected = {"ids": encoding.ids, "tokens": encoding.tokens,
                    "text": oracle.decode(encoding.ids, skip_special_tokens=False)}
        if row != expected:
            num_wrong += 1
            if num_wrong <= 3:
                print(f"{folder.name}: {line}\n  ours   {row}\n  theirs {expected}")
    id_lines = [{"ids": [rng.randrange(oracle.get_vocab_size()) for _ in range(rng.randrange(1, 9))]}
                for _ in range(num_strings // 10)]
    for line, row in zip(id_lines, answers([trainer, "tokenize", "--tokenizer", str(folder)], id_lines)):
        if row["text"] != oracle.decode(line["ids"], skip_special_tokens=False):
            num_wrong += 1
    print(f"{folder.name}: {num_strings} strings, {len(id_lines)} lists of ids, {num_wrong} differences")
    return num_wrong


def environment():
    def fail(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def random_chat(rng):
    messages = [{"role": "system", "content": random_text(rng, ["x"])}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": random_text(rng, ["<|im_end|>"])})
        answer = {"role": "assistant", "content": rng.choice(["", "<think>\na\n</think>\n\n"]) + random_text(rng, ["x"])}
        if rng.random() < 0.2:
            call = {"name": "f", "arguments": {"b": [1, 2.5, None], "a": random_text(rng, ["x"])}}
            answer = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            messages += [answer, {"role": "tool", "content": random_text(rng, ["x"])}]
        else:
            messages.append(answer)
    context = {"messages": messages, "add_generation_prompt": rng.random() < 0.5, "bos_token": "<s>",
               "eos_token": "</s>", "tools": None, "documents": None}
    if rng.random() < 0.3:
        context["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.3:
        context["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "z": 1,
                                                              "a": random_text(rng, ["x"])}}}]
    return context


def check_templates(trainer, folder, num_chats, seed):
    num_wrong = 0
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        if "{%- generation" in source:
            continue  # transformers' own tag
        rng = random.Random(f"{path.name} {seed}")
        lines = [{"context": random_chat(rng)} for _ in range(num_chats)]
        compiled = environment().from_string(source)
        for line, row in zip(lines, answers([trainer, "render", "--template", str(path)], lines)):
            try:
                expected = compiled.render(**line["context"])
            except Exception as error:  # any of jinja2's or Python's
                expected = error
            same = "error" in row if isinstance(expected, Exception) else row.get("text") == expected
            if not same:
                num_wrong += 1
                if num_wrong <= 3:
                    print(f"{path.name}: {line}\n  ours   {row}\n  theirs {expected!r}")
    print(f"templates: {num_chats} chats each, {num_wrong} differences")
    return num_wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("shared_data", type=pathlib.Path)
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not (arguments.shared_data / "tokenizers").is_dir():
        print("skipped: shared data is absent")
        sys.exit(77)
    num_wrong = check_templates(arguments.trainer, arguments.shared_data / "chat_templates", arguments.chats,
                                arguments.seed)
    for name in TOKENIZERS:
        num_wrong += check_tokenizer(arguments.trainer, arguments.shared_data / "tokenizers" / name, arguments.strings,
                                     arguments.seed)
    sys.exit(1 if num_wrong else 0)


main()
