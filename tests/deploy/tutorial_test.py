"""The tutorial's commands, as printed and with the real programs, print what the tutorial shows, within tolerances. Minutes."""

import math
import os
import re
import subprocess
import tempfile
import unittest

from environment import BIN_DIR, DEPS, ROOT, make_clone
from pages import FENCE, blocks_with_names
from programs import free_ports

# Accuracies of another processor differ, because each rounding leads to other samples and other weights. The standard error on 200
# problems is 3.5 points, and that of two runs of equal quality 5.
ACCURACY_POINTS = 12
# A mean over a step, for the same reason.
RELATIVE, ABSOLUTE = 0.25, 0.02
TIMEOUT_S = 1800
# `any` depends on the machine or its day, and anything may stand in its place.
PART = re.compile(r"(?P<any>\d{4}-\d\d-\d\dT[\d:.]+|(?<=revision=)\w+|(?<=train_seconds=)[\d.]+|\d+(?= tok/s)|(?<=ETA )\w+|"
                  r"[\d.]+ s\b|\.\.\.)|(?P<number>\d+(?:\.\d+)?%?)")
MARK = "@@ block"


def pattern(line):
    """A regular expression for lines with the same words, in which each number is a group."""
    parts, end = [], 0
    for match in PART.finditer(line):
        parts.append(re.escape(line[end:match.start()]))
        parts.append(r"(\d+(?:\.\d+)?%?)" if match["number"] else r".*?" if match[0] == "..." else r"\S+(?: s\b)?")
        end = match.end()
    text = "".join(parts) + re.escape(line[end:])
    return re.compile(re.sub(r"(?:\\ )+", lambda _: r"\s+", text) + r"\s*")


def numbers(line):
    return [match[0] for match in PART.finditer(line) if match["number"]]


def is_close(printed, seen, is_table):
    """Percentages, and the decimals of eval's table, by points; other decimals by ratio; whole numbers exactly."""
    if printed.endswith("%") != seen.endswith("%"):
        return False
    a, b = float(printed.rstrip("%")), float(seen.rstrip("%"))
    if printed.endswith("%") or (is_table and "." in printed):
        return abs(a - b) <= ACCURACY_POINTS
    if "." in printed:
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return printed == seen


def differences(printed, seen):
    """Lines of the page without an equal in the output. Words of a generated answer are the model's: its sum counts."""
    lines = seen.splitlines()
    found = []
    for line in printed.splitlines():
        answer = re.search(r"#\d{5}$", line)
        if answer:
            if not any(other.endswith(answer[0]) for other in lines):
                found.append(line)
            continue
        form, is_table = pattern(line), line.startswith("  val ")
        candidates = [match for match in map(form.fullmatch, lines) if match]
        if not any(all(is_close(a, b, is_table) for a, b in zip(numbers(line), match.groups())) for match in candidates):
            found.append(line + "".join(f"\n    here: {match[0]}" for match in candidates))
    return found


class TutorialTest(unittest.TestCase):
    def test_outputs(self):
        text = (ROOT / "docs/tutorial.md").read_text(encoding="ascii")
        text = text[:text.index("## 3. ")]
        http, grpc = free_ports(2)
        script, expected = ["set -eu"], []
        for match in FENCE.finditer(text):
            if match[1] == "sh":
                script += [match[2], f'echo; echo "{MARK} {len(expected)}"']
                expected.append("")
                # The teacher prints beside the commands that follow.
                if match[2].rstrip().endswith("&"):
                    script.append("sleep 5")
            elif match[1] == "":
                expected[-1] += match[2]
        self.assertGreaterEqual(len([e for e in expected if e]), 5)
        words = "\n".join(script).replace("taopd-teacher --model", f"taopd-teacher --port {http} --grpc-port {grpc} --model")
        words = words.replace("taopd-trainer train", f"taopd-trainer train --set teacher.endpoints=[grpc://127.0.0.1:{grpc}]")
        with tempfile.TemporaryDirectory() as directory:
            clone = make_clone(directory)
            for name, block in blocks_with_names(text):
                (clone / name).write_text(block, encoding="ascii")
            done = subprocess.run(["bash", "-c", words], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False, timeout=TIMEOUT_S,
                                  env={**os.environ, "TAOPD_DEPS": str(DEPS), "QUICKSTART_IS_BUILT": "1"})
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        print(done.stdout)
        seen = done.stdout.replace(str(BIN_DIR) + "/", "").replace(f":{http}", ":8000").replace(f":{grpc}", ":50051")
        for i, printed in enumerate(expected):
            # A program in the background prints into the next blocks.
            self.assertEqual(differences(printed, seen), [], f"block {i}")


class RulesTest(unittest.TestCase):
    """The comparison itself: it sees what it should, and no more."""

    def check(self, printed, seen, is_equal):
        self.assertEqual(differences(printed, seen) == [], is_equal, (printed, seen))

    def test_rules(self):
        for printed, seen, is_equal in (
                ("step 20/60  loss 0.1649  eval 61.0%  12854 tok/s  ETA 1m02s", "step 20/60  loss 0.17  eval 57.0%  9 tok/s  ETA 3s", True),
                ("step 20/60  loss 0.1649  eval 61.0%", "step 40/60  loss 0.1649  eval 61.0%", False),
                ("step 20/60  loss 0.1649  eval 61.0%", "step 20/60  loss 0.2649  eval 61.0%", False),
                ("step 20/60  loss 0.1649  eval 61.0%", "step 20/60  loss 0.1649  eval 31.0%", False),
                ("step 20/60  tail 0.047  teacher 0.028", "step 20/60  tail 0.047", False),
                ("  val  1000  77.40  0.20", "  val  1000  80.10  1.50", True),
                ("  val  1000  77.40  0.20", "  val  1000  60.10  0.20", False),
                ("  val  1000  77.40  0.20", "  val  999  77.40  0.20", False),
                ("models 75.3 s, training 59.7 s", "models 0.0 s, training 12.4 s", True),
                (" so4+1+0=05#05555", " the4+1+0=05#05555", True), (" so4+1+0=05#05555", " so4+1+0=05#05556", False),
                ("2026-11-23T23:46:15.943 I engine device=cpu num_parameters=209504",
                 "2027-01-01T00:00:00.000 I engine device=cpu num_parameters=209504", True),
                ("I engine device=cpu num_parameters=209504", "I engine device=cpu num_parameters=209505", False)):
            self.check(printed, "other\n" + seen + "\nother", is_equal)
