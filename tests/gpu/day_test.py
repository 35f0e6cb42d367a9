"""tests/gpu/day.py: a part that fails, hangs or breaks does not stop the others, and every line has a verdict. With
--rehearsal BUILD_DIR, the whole script runs on this machine's CPU."""

import argparse
import contextlib
import io
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gpu"))
import day  # noqa: E402
import day_parts  # noqa: E402
from day_parts import Failed, Part, Skipped  # noqa: E402

BUILD_DIR = None


def run_parts(parts, *arguments):
    """Runs the day with these parts; returns its exit code, {part: (verdict, text)} and the results file."""
    with tempfile.TemporaryDirectory() as out:
        known, day_parts.PARTS = day_parts.PARTS, parts
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                code = day.main(["--rehearse", "--out", out, *arguments])
        finally:
            day_parts.PARTS = known
        (results,) = pathlib.Path(out).glob("*.md")
        text = results.read_text(encoding="utf-8")
        logs = {path.stem: path.read_text(encoding="utf-8") for path in pathlib.Path(out).glob("*.log")}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return code, {row[0]: (row[1], row[3]) for row in rows[1:]}, text, logs


def fail(_):
    raise Failed("wrong number")


def skip(_):
    raise Skipped("one GPU")


def sleep(a_day):
    return a_day.run(["sleep", "60"])


class DayTest(unittest.TestCase):
    def test_parts_do_not_stop_each_other(self):
        parts = [Part("good", lambda _: "42 | tokens/s", 9), Part("bad", fail, 9), Part("none", skip, 9),
                 Part("broken", lambda _: {}["x"], 9), Part("slow", sleep, 0.3),
                 Part("after bad", lambda _: "", 9, ("good", "bad")), Part("after none", lambda _: "", 9, ("none",)),
                 Part("after after", lambda _: "", 9, ("after bad",)), Part("last", lambda _: "ok", 9, ("good",))]
        code, rows, text, logs = run_parts(parts)
        self.assertEqual(code, 1)
        self.assertEqual({name: verdict for name, (verdict, _) in rows.items()},
                         {"good": "passed", "bad": "failed", "none": "skipped", "broken": "failed", "slow": "failed",
                          "after bad": "not reached", "after none": "not reached", "after after": "not reached",
                          "last": "passed"})
        self.assertEqual(rows["good"][1], "42 / tokens/s")  # a bar would end the cell
        self.assertEqual(rows["bad"][1], "wrong number")
        self.assertIn("KeyError", rows["broken"][1])
        self.assertEqual(rows["slow"][1], "sleep did not end in time")
        self.assertEqual(rows["after bad"][1], "bad: failed")
        self.assertIn("$ sleep 60", logs["slow"])
        for head in ("# Rehearsal on a CPU", "- date: 20", "- commit: ", "- command: tests/gpu/run --rehearse"):
            self.assertIn(head, text)

    def test_skipped_parts_alone_are_no_failure(self):
        code, rows, _, _ = run_parts([Part("none", skip, 9), Part("good", lambda _: "", 9)])
        self.assertEqual((code, rows["none"][0]), (0, "skipped"))

    def test_what_no_time_is_left_for_is_not_reached(self):
        parts = [Part("build", sleep, 0.2, is_preparation=True), Part("slow", sleep, 60), Part("late", lambda _: "", 9),
                 Part("facts", lambda _: "", 9, is_preparation=True)]
        code, rows, _, _ = run_parts(parts, "--limit", "0.3")
        self.assertEqual(code, 1)
        self.assertEqual(rows["late"], ("not reached", "the time is up (--limit)"))
        self.assertEqual((rows["slow"][0], rows["facts"][0]), ("failed", "passed"))

    def test_only_runs_a_part_and_what_it_needs(self):
        parts = [Part("a", lambda _: "", 9), Part("b", lambda _: "", 9, ("a",)), Part("c", lambda _: "", 9, ("b",)),
                 Part("d", lambda _: "", 9)]
        _, rows, _, _ = run_parts(parts, "--only", "c")
        self.assertEqual(list(rows), ["a", "b", "c"])
        with self.assertRaisesRegex(SystemExit, "no part e; the parts are a, b, c, d"):
            run_parts(parts, "--only", "e")

    def test_a_command_with_another_exit_code_fails_with_its_last_line(self):
        parts = [Part("a", lambda a_day: a_day.run(["sh", "-c", "echo first; echo last; exit 3"]), 9),
                 Part("b", lambda a_day: a_day.run(["/no/such/program"]), 9)]
        _, rows, _, _ = run_parts(parts)
        self.assertEqual(rows["a"][1], "sh ended with 3, not 0: last")
        self.assertEqual(rows["b"], ("failed", "/no/such/program: No such file or directory"))

    def test_architectures(self):
        self.assertEqual([day_parts.architecture(x) for x in ("8.0", "8.9", "9.0", "10.0", "12.0")],
                         ["80-real", "89-real", "90a-real", "100-real", "120-real"])

    def test_the_rehearsal(self):
        """Every part, with the real programs. A stand-in for compute-sanitizer runs the program that it is given."""
        if BUILD_DIR is None:
            self.skipTest("no --rehearsal BUILD_DIR")
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "compute-sanitizer")
            tool.write_text('#!/bin/sh\n[ "$1 $3 $4" = "--tool --error-exitcode 9" ] || exit 1\nshift 4\nexec "$@"\n')
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
            result = subprocess.run([ROOT / "tests/gpu/run", "--rehearse", "--build-dir", BUILD_DIR, "--out", folder],
                                    env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), capture_output=True,
                                    text=True, timeout=600, check=False)
            (results,) = pathlib.Path(folder).glob("*-rehearsal.md")
            text = results.read_text(encoding="utf-8")
            logs = "".join(path.read_text(encoding="utf-8", errors="replace")[-3000:]
                           for path in sorted(pathlib.Path(folder).glob("*.log")) if f"| {path.stem} | failed" in text)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + logs)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
        verdicts = {row[0]: row[1] for row in rows[1:]}
        self.assertEqual(list(verdicts), [part.name for part in day_parts.PARTS])
        # The benchmark of the heads is a program for GPUs, and torch may not be installed.
        for name, verdict in verdicts.items():
            self.assertEqual(verdict, "skipped" if name == "heads" or (name == "pytorch" and verdict == "skipped") else "passed",
                             name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rehearsal")
    known, rest = parser.parse_known_args()
    BUILD_DIR = known.rehearsal
    unittest.main(argv=[sys.argv[0], *rest])
