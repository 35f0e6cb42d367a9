"""tests/gpu/session.py: a part that fails, hangs or breaks stops only those that need it, and every line has a verdict."""

import contextlib
import datetime
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/deploy"))
import results_table
import session
import session_parts
from environment import write_script
from session_parts import Failed, Part, Skipped


def run_parts(parts, *arguments):
    """Runs the session with these parts; returns its exit code, {part: (verdict, text)} and the results file."""
    with tempfile.TemporaryDirectory() as out:
        known, session_parts.PARTS = session_parts.PARTS, parts
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                code = session.main(["--rehearse", "--out", out, *arguments])
        finally:
            session_parts.PARTS = known
        (results,) = pathlib.Path(out).glob("*.md")
        text = results.read_text(encoding="utf-8")
        logs = {path.stem: path.read_text(encoding="utf-8") for path in pathlib.Path(out).glob("*.log")}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return code, {row[0]: (row[1], row[3]) for row in rows[1:]}, text, logs


def fail(_):
    raise Failed("wrong number")


def skip(_):
    raise Skipped("one GPU")


def sleep(a_session):
    return a_session.run(["sleep", "60"])


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
        parts = [Part("a", lambda a_session: a_session.run(["sh", "-c", "echo first; echo last; exit 3"]), 9),
                 Part("b", lambda a_session: a_session.run(["/no/such/program"]), 9)]
        _, rows, _, _ = run_parts(parts)
        self.assertEqual(rows["a"][1], "sh ended with 3, not 0: last")
        self.assertEqual(rows["b"], ("failed", "/no/such/program: No such file or directory"))

    def test_architectures(self):
        self.assertEqual([session_parts.architecture(x) for x in ("8.0", "8.9", "9.0", "10.0", "12.0")],
                         ["80-real", "89-real", "90a-real", "100-real", "120-real"])

    def test_a_build_that_exists_is_brought_up_to_date(self):
        with tempfile.TemporaryDirectory() as folder:
            build_dir, commands = pathlib.Path(folder), []
            (build_dir / "bin").mkdir()
            for name in ("taopd-teacher", "taopd-trainer"):
                (build_dir / "bin" / name).touch()
            (build_dir / "CMakeCache.txt").touch()
            # nvcc, which is not in PATH here, is needed only if a file has changed.
            a_session = types.SimpleNamespace(rehearse=False, build_dir=build_dir, facts={"nvcc": "none"}, run=commands.append)
            self.assertEqual(session_parts.build(a_session), f"{build_dir} is up to date")
            self.assertEqual(commands, [["cmake", "--build", build_dir]])
            (build_dir / "CMakeCache.txt").unlink()
            self.assertEqual(session_parts.build(a_session), f"the programs of {build_dir}, built elsewhere")
            self.assertEqual(len(commands), 1)

    def test_the_commit_says_if_files_differ(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(session, "ROOT", folder):
            path = pathlib.Path(folder, "file")
            path.touch()
            for arguments in (["init"], ["add", "file"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "--message=a"]):
                subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)
            self.assertRegex(session.commit_of_tree(), r"^[0-9a-f]{4,}$")
            path.write_text("changed", encoding="ascii")
            self.assertRegex(session.commit_of_tree(), r"^[0-9a-f]{4,}-dirty$")

    def test_a_sanitizer_that_is_cut_off_tells_what_it_found(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "compute-sanitizer")
            printed = "========= COMPUTE-SANITIZER\\n[       OK ] a\\n"
            for found, expected in (("", "found nothing in 1 tests; no time was left for the others"),
                                    ("========= Invalid __global__ read\\n", "compute-sanitizer did not end in time"),):
                write_script(tool, f"printf '{printed}{found}'; sleep 60 & wait")
                part = Part("memcheck", session_parts.sanitizer("memcheck"), 0.5)
                with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), \
                        mock.patch.object(session.Session, "test_program", lambda *_: "program"):
                    _, rows, _, _ = run_parts([part])
                self.assertEqual(rows["memcheck"], ("failed" if found else "passed", expected))

    def test_a_kernel_that_was_not_checked_is_not_trusted(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"{name}: custom, 2.0x, error 1.0e-03 of 2.0e-02 allowed (y)" for name in session_parts.CHECKED_KERNELS]
            lines[3] = "paged attention: custom, not checked, because the composition failed: out of memory"
            lines[4] = "prefill attention: composed, because the kernel is slower: 0.2x"
            pathlib.Path(folder, "self_check.txt").write_text("\n".join(lines), encoding="utf-8")
            a_session = types.SimpleNamespace(rehearse=False, out=pathlib.Path(folder))
            self.assertEqual(session_parts.self_check(a_session), "; ".join(lines[3:5]))


class RanTest(unittest.TestCase):
    def test_the_page_says_what_ran(self):
        page = results_table.PAGE.read_text(encoding="utf-8")
        self.assertEqual(results_table.with_text(page, results_table.describe(results_table.RESULTS)), page, "run tests/gpu/results_table.py --write")

    def test_a_results_file_becomes_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(results_table.describe(pathlib.Path(folder)), results_table.NOTHING)
            a_session = session.Session(types.SimpleNamespace(rehearse=False, small=False, build_dir=None, commit=None, out=folder), folder)
            a_session.facts = {"device": "NVIDIA H100", "driver": "580.1"}
            rows = [("build", "passed", 1.0, "ok"), ("heads", "failed", 1.0, "x"), ("vllm", "skipped", 0, "none")]
            path = pathlib.Path(folder, "2026-01-02-0304.md")
            session.write_results(path, a_session, "tests/gpu/run", datetime.datetime(2026, 1, 2, 3, 4), rows)
            row = results_table.describe(pathlib.Path(folder)).splitlines()[-1]
            self.assertRegex(row, r"^\| \[2026-01-02 03:04 UTC\]\(\.\./tests/bench/results/gpu/2026-01-02-0304\.md\) \| "
                                  r"NVIDIA H100 \| 580\.1 \| [\w-]+ \| build \| heads \| vllm \|$")
            # A rehearsal is not a result of a GPU.
            a_session.rehearse = True
            session.write_results(path, a_session, "tests/gpu/run --rehearse", datetime.datetime(2026, 1, 2), rows)
            with self.assertRaisesRegex(ValueError, "not a results file of a GPU"):
                results_table.describe(pathlib.Path(folder))
