"""The addition experiment's generator: the facts of its data on which the experiment relies."""

import hashlib
import json
import pathlib
import re
import sys
import tempfile
import unittest

from environment import ROOT, expect, load_script

GENERATOR = ROOT / "deploy/examples/addition/generate.py"


def generate(*arguments, generator=GENERATOR):
    """The files that a generator writes, by name."""
    with tempfile.TemporaryDirectory() as out_dir:
        expect(0, [sys.executable, generator, out_dir, *arguments])
        return {path.name: path.read_bytes() for path in pathlib.Path(out_dir).rglob("*") if path.is_file()}


def rows(data):
    return [json.loads(line) for line in data.decode("ascii").splitlines()]


SMALL = ("--train", "300", "--val", "200", "--teacher-sft", "2000", "--student-sft", "2000")
SCRATCHPAD = re.compile(r"(?: [a-z]+(\d)\+(\d)\+([01])=(\d\d)){4}#(\d{5})")


class AdditionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.module = load_script(GENERATOR)
        cls.files = generate(*SMALL)

    def tokens(self, text):
        """BPE by the tokenizer.json that was written: the lowest merge first, in each pre-token of GPT-2's pattern."""
        tokenizer = json.loads(self.files["tokenizer.json"])
        vocabulary = tokenizer["model"]["vocab"]
        rank = {tuple(merge.split(" ")): i for i, merge in enumerate(tokenizer["model"]["merges"])}
        added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, added)) + ")", text):
            if part in added:
                ids.append(added[part])
                continue
            for pre_token in re.findall(r" ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+", part):
                symbols = list(self.module.byte_level(pre_token))
                while True:
                    pairs = [(rank[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:])) if pair in rank]
                    if not pairs:
                        break
                    i = min(pairs)[1]
                    symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
                ids += [vocabulary[symbol] for symbol in symbols]
        return ids

    def test_same_seed_same_bytes(self):
        self.assertEqual(self.files, generate(*SMALL))
        other = generate(*SMALL, "--seed", "1")
        self.assertEqual(self.files["tokenizer.json"], other["tokenizer.json"])
        for name in ("train.jsonl", "val.jsonl", "teacher_sft.jsonl", "student_sft.jsonl"):
            self.assertNotEqual(self.files[name], other[name], name)

    def test_bytes_of_this_version(self):
        # A change of these bytes is a change of the experiment: its numbers in the README are to be made again.
        digest = hashlib.sha256(b"".join(self.files[name] for name in sorted(self.files))).hexdigest()
        self.assertEqual(digest, "1a441c40349603abfaa86ebf2ee87e743fe59d7fa451b940068f18845ae21b33")

    def test_vocabulary(self):
        tokenizer = json.loads(self.files["tokenizer.json"])
        ids = list(tokenizer["model"]["vocab"].values()) + [token["id"] for token in tokenizer["added_tokens"]]
        self.assertEqual(sorted(ids), list(range(128)))
        config = json.loads((GENERATOR.parent / "config.json").read_text())
        self.assertEqual([config["bos_token_id"], config["eos_token_id"]],
                         [token["id"] for token in tokenizer["added_tokens"]])
        self.assertEqual(config["vocab_size"], 128)
        self.assertEqual(len(set(self.module.CONNECTIVES)), 48)

    def test_fixed_width_and_few_ids(self):
        used = set()
        for name in ("teacher_sft.jsonl", "student_sft.jsonl"):
            for row in rows(self.files[name]):
                prompt, response = self.tokens(row["prompt"]), self.tokens(row["response"])
                self.assertEqual((len(prompt), len(response)), (11, 42), row)
                used |= set(prompt) | set(response)
        self.assertEqual(len(used), 1 + 13 + 48)  # <bos>, digits and symbols, connectives; <eos> comes in training

    def test_teacher_adds_right(self):
        for row in rows(self.files["teacher_sft.jsonl"]):
            a, b = map(int, re.fullmatch(r"<bos>(\d{4})\+(\d{4})=", row["prompt"]).groups())
            self.assertRegex(row["response"], SCRATCHPAD)
            self.assertEqual(int(row["response"].split("#")[1]), a + b, row)
            columns = re.findall(r"(\d)\+(\d)\+(\d)=(\d\d)", row["response"])
            for column, (x, y, carry, total) in enumerate(columns):
                self.assertEqual((int(x), int(y)), (a // 10**column % 10, b // 10**column % 10))
                self.assertEqual(int(x) + int(y) + int(carry), int(total))

    def test_answers(self):
        for name in ("train.jsonl", "val.jsonl"):
            for row in rows(self.files[name]):
                a, b = map(int, re.fullmatch(r"<bos>(\d{4})\+(\d{4})=", row["prompt"]).groups())
                self.assertEqual(row["answer"], f"{a + b:05d}")

    def test_nothing_held_out_is_seen(self):
        held_out = {row["prompt"] for row in rows(self.files["val.jsonl"])}
        self.assertEqual(len(held_out), 200)
        for name in ("train.jsonl", "teacher_sft.jsonl", "student_sft.jsonl"):
            self.assertFalse(held_out & {row["prompt"] for row in rows(self.files[name])}, name)

    def test_teacher_has_a_tail_and_student_a_dialect(self):
        first_words = {}
        for who in ("teacher", "student"):
            words = [re.match(r" [a-z]+", row["response"]) for row in rows(self.files[f"{who}_sft.jsonl"])]
            counts = {}
            for word in words:
                if word:
                    counts[word.group()] = counts.get(word.group(), 0) + 1
            first_words[who] = sorted(counts, key=counts.get, reverse=True)
            tail = 1 - sum(sorted(counts.values(), reverse=True)[:8]) / sum(counts.values())
            self.assertAlmostEqual(tail, 0.29, delta=0.04)
        self.assertNotEqual(first_words["teacher"][:3], first_words["student"][:3])

    def test_teachers_of_other_dialects(self):
        def first_words(files, who):
            words = [row["response"].split("+")[0][:-1] for row in rows(files[f"{who}_sft.jsonl"])]
            return sorted(set(words), key=words.count, reverse=True)
        most = {who: first_words(self.files, who)[0] for who in ("teacher", "student")}
        for dialect, expected in (("student", {most["student"]}), ("mixed", set(most.values()))):
            files = generate(*SMALL, "--teacher-dialect", dialect)
            self.assertEqual(set(first_words(files, "teacher")[:len(expected)]), expected)
            for name in ("train.jsonl", "val.jsonl", "student_sft.jsonl"):  # nothing else differs
                self.assertEqual(files[name], self.files[name], name)

    def test_student_has_noise(self):
        wrong = sum(not SCRATCHPAD.fullmatch(row["response"]) for row in rows(self.files["student_sft.jsonl"]))
        # A response is hit with probability 1 - .97^42 = .72; some hits keep the shape (a digit for a digit).
        self.assertGreater(wrong / 2000, 0.5)
        self.assertLess(wrong / 2000, 0.72)


class HintedAdditionTest(unittest.TestCase):
    """The self-distillation experiment's generator, which uses the one above."""

    def test_the_solution_is_the_response_without_its_words(self):
        generator = ROOT / "deploy/examples/hinted_addition/generate.py"
        files, again = (generate("--train", "50", "--val", "20", "--sft", "400", generator=generator) for _ in range(2))
        self.assertEqual(files, again)
        solution = re.compile(r"(?:\.\d\+\d\+[01]=\d\d){3}#(\d{4})")
        problems = {name: rows(files[f"{name}.jsonl"]) for name in ("train", "val")}
        for row in problems["train"] + problems["val"]:
            a, b = re.fullmatch(r"(\d{3})\+(\d{3})=", row["prompt"]).groups()
            self.assertEqual(row["answer"], f"{int(a) + int(b):04d}")
            self.assertEqual(solution.fullmatch(row["solution"])[1], row["answer"])
        held_out = {row["prompt"] for row in problems["val"]}
        supervised = rows(files["student_sft.jsonl"])
        hinted = [row for row in supervised if ";" in row["prompt"]]
        self.assertEqual(len(hinted), 200)
        for row in hinted:
            self.assertEqual(re.sub(" [a-z]+", ".", row["response"]), row["prompt"].split(";")[0])
        self.assertFalse(held_out & {row["prompt"].split(";")[-1] for row in supervised + problems["train"]})
