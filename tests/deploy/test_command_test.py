"""What tests/run says and asks: the closing line, the exit code, the arguments of ctest, and the tests that ctest finds."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

from environment import ROOT, expect, run, temporary_path, write_script

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

    def test_numbers_and_exit_codes(self):
        """A missing program is a failure, and so is it if nothing ran."""
        for cases, status, expected in (([PASSED, PASSED, SKIPPED], 0, (0, "2 passed, 0 failed, 1 skipped\n")),
                                        ([PASSED, FAILED, DISABLED], 8, (1, "1 passed, 1 failed, 1 skipped\n")),
                                        ([PASSED, MISSING], 8, (1, "1 passed, 1 failed, 0 skipped\n")),
                                        ([], 0, (1, "0 passed, 0 failed, 0 skipped\n")),
                                        ([SKIPPED], 0, (1, "0 passed, 0 failed, 1 skipped\n"))):
            with self.subTest(cases):
                self.assertEqual(self.summary(cases, status), expected)
        self.assertEqual(self.summary([PASSED], 1)[0], 1)  # ctest failed otherwise

    def test_tests_of_a_suite_count_one_by_one(self):
        good = f'<testcase name="s" status="run">{SUITE.format(third="[       OK ] P/S.C/0 (1 ms)")}</testcase>'
        self.assertEqual(self.summary([PASSED, good], 0), (0, "3 passed, 0 failed, 1 skipped\n"))
        bad = SUITE.format(third="[  FAILED  ] P/S.C/0, where GetParam() = 7 (1 ms)")
        bad = f'<testcase name="s" status="fail"><failure message=""/>{bad}</testcase>'
        self.assertEqual(self.summary([bad], 8), (1, "1 passed, 1 failed, 1 skipped\n"))
        crashed = '<testcase name="s" status="fail"><failure/><system-out>[       OK ] S.A (3 ms)\n</system-out></testcase>'
        self.assertEqual(self.summary([crashed], 8), (1, "1 passed, 1 failed, 0 skipped\n"))


class LabelsTest(unittest.TestCase):
    """The arguments that tests/run gives ctest, with programs that stand for deploy/setup, cmake and ctest."""

    def setUp(self):
        self.tree = temporary_path(self)
        for folder in ("tests/support", "build/cpu/Testing/Temporary"):
            (self.tree / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tests/run", self.tree / "tests/run")
        (self.tree / "tests/support/summarize_junit.py").touch()
        (self.tree / "build/cpu/build.ninja").touch()
        write_script(self.tree / "deploy/setup", 'echo "$@" >setup_arguments')
        write_script(self.tree / "bin/cmake", 'echo "$@" >>cmake_arguments')
        write_script(self.tree / "bin/ctest", 'touch build/cpu/test-report.xml\nprintf "%s\\n" "$@" >arguments\n'
                                              'printf "%s" "$TMPDIR" >tmpdir')

    def ctest_arguments(self, *arguments, **environment):
        self.output = expect(0, [self.tree / "tests/run", *arguments],
                             env={**os.environ, "PATH": f"{self.tree / 'bin'}:{os.environ['PATH']}", **environment}).stdout
        given = (self.tree / "arguments").read_text().splitlines()
        return given[given.index("--output-junit") + 2:]

    def test_only_a_label_that_selects_replaces_the_default(self):
        default = ["-LE", "oracle|slow|vllm|clients"]
        self.assertEqual(self.ctest_arguments(), default)
        self.assertEqual(self.ctest_arguments("-R", "checkpoint"), ["-R", "checkpoint", *default])
        for option in ("-LE", "--label-exclude"):
            # One expression: ctest leaves out a test only if all given expressions match its labels.
            self.assertEqual(self.ctest_arguments(option, "deploy"), ["-LE", "deploy|oracle|slow|vllm|clients"])
        self.assertEqual(self.ctest_arguments("-L", "unit", "-LE", "gpu"), ["-L", "unit", "-LE", "gpu"])
        self.assertEqual(self.ctest_arguments("-L", "slow"), ["-L", "slow"])
        self.assertEqual(self.ctest_arguments("--label-regex", "slow"), ["--label-regex", "slow"])
        self.assertEqual(self.ctest_arguments("--only", "server_test"), ["-R", "^(server_test)\\."])
        self.assertEqual(self.ctest_arguments("--only", "a", "--only", "b"), ["-R", "^(a|b)\\."])

    def test_names_what_ran_twice(self):
        log = self.tree / "build/cpu/Testing/Temporary/LastTest.log"
        log.write_text("1/3 Test: once\n2/3 Test: a.B+C\n3/3 Test: other\n2/3 Test: a.B+C\n3/3 Test: other\n")
        self.ctest_arguments()
        self.assertIn("\nran more than once: a.B+C, other\n", self.output)

    def test_warnings_are_errors_where_asked(self):
        for arguments, configured in (((), ""), (("--werror",), "--preset cpu -DTAOPD_WERROR=ON\n")):
            self.assertEqual(self.ctest_arguments(*arguments), ["-LE", "oracle|slow|vllm|clients"])
            self.assertEqual((self.tree / "cmake_arguments").read_text(), configured + "--build --preset cpu\n")
            (self.tree / "cmake_arguments").unlink()

    def test_sets_up_unless_told_otherwise(self):
        for arguments, is_set_up in ((("--no-setup",), False), ((), True)):
            self.assertEqual(self.ctest_arguments(*arguments), ["-LE", "oracle|slow|vllm|clients"])
            self.assertEqual((self.tree / "setup_arguments").exists(), is_set_up)

    def test_temporary_files_leave_nothing_in_memory(self):
        for given, label in (("", ()), ("", ("-L", "slow")), (str(self.tree), ())):
            self.ctest_arguments(*label, TMPDIR=given)
            used = (self.tree / "tmpdir").read_text()
            if given or label:
                self.assertEqual(used, given)
            elif used:  # there was room
                self.assertRegex(used, "^/dev/shm/taopd-tests-")
                self.assertFalse(pathlib.Path(used).exists())
        self.assertTrue(self.tree.exists())


class SuitesTest(unittest.TestCase):
    def test_the_limit_counts_the_suites_of_a_test(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory, "program")
            write_script(program, "printf 'A.\\n  X\\nB/0.  # TypeParam = int\\n  Y\\n  Z\\nC.\\n  X\\n'")
            pathlib.Path(directory, "CTestTestfile.cmake").write_text(
                f"set(taopd_program {program})\nset(taopd_prefix p)\nset(taopd_suites_per_test 2)\nset(taopd_timeout 120)\n"
                f"set(taopd_properties LABELS;unit;COST;0)\ninclude({ROOT}/common/cmake/DiscoverSuites.cmake)\n")
            listed = run(["ctest", "--show-only=json-v1"], cwd=directory)
        found = {}
        for test in json.loads(listed.stdout)["tests"]:
            properties = {one["name"]: one["value"] for one in test["properties"]}
            found[test["name"]] = (properties["TIMEOUT"], properties["LABELS"], test["command"][1:])
        self.assertEqual(found, {"p.A+B/0": (240, ["unit"], ["--gtest_filter=A.*:B/0.*"]),
                                 "p.C": (120, ["unit"], ["--gtest_filter=C.*"])})
