"""What tests/run says: the closing line and the exit code; and that deploy/setup leaves a ready machine alone."""

import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

from environment import run

ROOT = pathlib.Path(__file__).resolve().parents[2]

PASSED = '<testcase name="a" status="run"/>'
FAILED = '<testcase name="b" status="fail"><failure message=""/></testcase>'
SKIPPED = '<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'
DISABLED = '<testcase name="d" status="disabled"/>'
MISSING = '<testcase name="e" status="notrun"><skipped message="Unable to find executable"/></testcase>'
SUITE = """<system-out>[ RUN      ] S.A
[       OK ] S.A (3 ms)
[ RUN      ] S.B
[  SKIPPED ] S.B (0 ms)
[ RUN      ] P/S.C/0
{third}
[==========] 3 tests from 1 test suite ran. (5 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] S.B
[  FAILED  ] 1 test, listed below:
[  FAILED  ] P/S.C/0, where GetParam() = 7
</system-out>"""


class SummaryTest(unittest.TestCase):
    def summary(self, cases, ctest_status):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            report.write(f"<testsuite>{''.join(cases)}</testsuite>")
            report.flush()
            done = run([sys.executable, ROOT / "tests/support/summarize_junit.py", report.name, str(ctest_status)])
        return done.returncode, done.stdout

    def test_all_passed(self):
        self.assertEqual(self.summary([PASSED, PASSED, SKIPPED], 0), (0, "2 passed, 0 failed, 1 skipped\n"))

    def test_failure(self):
        self.assertEqual(self.summary([PASSED, FAILED, DISABLED], 8), (1, "1 passed, 1 failed, 1 skipped\n"))

    def test_missing_program_is_a_failure(self):
        self.assertEqual(self.summary([PASSED, MISSING], 8), (1, "1 passed, 1 failed, 0 skipped\n"))

    def test_tests_of_a_suite_count_one_by_one(self):
        good = f'<testcase name="s" status="run">{SUITE.format(third="[       OK ] P/S.C/0 (1 ms)")}</testcase>'
        self.assertEqual(self.summary([PASSED, good], 0), (0, "3 passed, 0 failed, 1 skipped\n"))
        bad = SUITE.format(third="[  FAILED  ] P/S.C/0, where GetParam() = 7 (1 ms)")
        bad = f'<testcase name="s" status="fail"><failure message=""/>{bad}</testcase>'
        self.assertEqual(self.summary([bad], 8), (1, "1 passed, 1 failed, 1 skipped\n"))
        crashed = '<testcase name="s" status="fail"><failure/><system-out>[       OK ] S.A (3 ms)\n</system-out></testcase>'
        self.assertEqual(self.summary([crashed], 8), (1, "1 passed, 1 failed, 0 skipped\n"))

    def test_nothing_ran(self):
        self.assertEqual(self.summary([], 0), (1, "0 passed, 0 failed, 0 skipped\n"))
        self.assertEqual(self.summary([SKIPPED], 0), (1, "0 passed, 0 failed, 1 skipped\n"))

    def test_ctest_failed_otherwise(self):
        self.assertEqual(self.summary([PASSED], 1)[0], 1)


class LabelsTest(unittest.TestCase):
    """The arguments that tests/run gives ctest, with programs that stand for deploy/setup, cmake and ctest."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = pathlib.Path(directory.name)
        for folder in ("tests/support", "deploy", "bin", "build/cpu"):
            (self.tree / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tests/run", self.tree / "tests/run")
        (self.tree / "tests/support/summarize_junit.py").touch()
        (self.tree / "build/cpu/build.ninja").touch()
        self.add_program("deploy/setup", "")
        self.add_program("bin/cmake", "")
        self.add_program("bin/ctest", 'touch build/cpu/test-report.xml\nprintf "%s\\n" "$@" >arguments')

    def add_program(self, path, body):
        (self.tree / path).write_text(f"#!/bin/sh\n{body}\n")
        (self.tree / path).chmod(0o755)

    def ctest_arguments(self, *arguments):
        done = run([self.tree / "tests/run", *arguments],
                   env={**os.environ, "PATH": f"{self.tree / 'bin'}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        given = (self.tree / "arguments").read_text().splitlines()
        return given[given.index("--output-junit") + 2:]

    def test_only_a_label_that_selects_replaces_the_default(self):
        default = ["-LE", "oracle|slow|vllm|clients"]
        self.assertEqual(self.ctest_arguments(), default)
        self.assertEqual(self.ctest_arguments("-R", "checkpoint"), ["-R", "checkpoint", *default])
        for option in ("-LE", "--label-exclude"):
            # One expression: ctest leaves out a test only if all given expressions match its labels.
            self.assertEqual(self.ctest_arguments(option, "golden"), ["-LE", "golden|oracle|slow|vllm|clients"])
        self.assertEqual(self.ctest_arguments("-L", "unit", "-LE", "golden"), ["-L", "unit", "-LE", "golden"])
        self.assertEqual(self.ctest_arguments("-L", "slow"), ["-L", "slow"])
        self.assertEqual(self.ctest_arguments("--label-regex", "slow"), ["--label-regex", "slow"])
        self.assertEqual(self.ctest_arguments("--only", "server_test"), ["-R", "^server_test\\."])


class SetupTest(unittest.TestCase):
    def setup_says(self, *arguments, **environment):
        done = run([ROOT / "deploy/setup", *arguments], env={**os.environ, **environment})
        return done.returncode, done.stdout, done.stderr

    def with_libtorch(self, layout):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        files = [pathlib.Path(layout, file) for file in ("include/ATen/ATen.h", "lib/libtorch_cpu.so")]
        files += [pathlib.Path("pyarrow", file) for file in ("include/parquet/arrow/reader.h", "libparquet.so.2600")]
        for path in (pathlib.Path(directory.name, file) for file in files):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return directory.name

    def test_a_ready_machine(self):
        if self.setup_says("--check", TAOPD_DEPS=self.with_libtorch("."))[0] != 0:
            self.skipTest("this machine was not set up by deploy/setup")
        for layout in ("torch-2.11.0/torch", "torch", "."):
            start = time.monotonic()
            self.assertEqual(self.setup_says(TAOPD_DEPS=self.with_libtorch(layout)), (0, "setup: nothing to do\n", ""))
            self.assertLess(time.monotonic() - start, 5)  # 0.05 s on an idle machine

    def test_half_a_libtorch_is_missing(self):
        deps = self.with_libtorch("torch")
        pathlib.Path(deps, "torch/lib/libtorch_cpu.so").unlink()
        code, _, error = self.setup_says("--check", TAOPD_DEPS=deps)
        self.assertEqual(code, 1)
        self.assertIn("missing" if "packages" in error else f"LibTorch is not in {deps}", error)

    def test_unknown_argument(self):
        code, _, error = self.setup_says("--test")
        self.assertEqual(code, 1)
        self.assertIn("unknown argument --test", error)


if __name__ == "__main__":
    unittest.main()
