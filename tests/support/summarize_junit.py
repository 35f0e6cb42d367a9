"""Prints the closing line of tests/run from ctest's JUnit report and ends with the exit code.

Usage: summarize_junit.py REPORT CTEST_STATUS

A case of the report may be several suites of GoogleTest, whose tests are counted in the program's output.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree


PASSED = re.compile(r"^\[       OK \] \S+", re.M)
FAILED = re.compile(r"^\[  FAILED  \] \S+.* \(\d+ ms\)$", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] \S+ \(\d+ ms\)$", re.M)


def count(report):
    """Returns (passed, failed, skipped) of the report's tests."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        output = case.findtext("system-out") or ""
        tests = [len(kind.findall(output)) for kind in (PASSED, FAILED, SKIPPED)]
        if case.get("status") == "run":
            passed += tests[0] if sum(tests) else 1
            skipped += tests[2]
        elif case.get("status") == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_")):
            skipped += 1
        else:  # failed; or "notrun" for another reason: the program or a fixture is missing
            passed += tests[0]
            failed += max(tests[1], 1)
            skipped += tests[2]
    return passed, failed, skipped


def main():
    passed, failed, skipped = count(sys.argv[1])
    good = passed > 0 and failed == 0 and int(sys.argv[2]) == 0
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
