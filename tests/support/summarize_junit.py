"""Prints the closing line of tests/run from ctest's JUnit report and ends with the exit code.

Usage: summarize_junit.py REPORT CTEST_STATUS
"""

import sys
import xml.etree.ElementTree as ElementTree


def count(report):
    """(passed, failed, skipped) of the report's test cases."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_")):
            skipped += 1
        else:  # failed; or "notrun" for another reason: the program or a fixture is missing
            failed += 1
    return passed, failed, skipped


def main():
    passed, failed, skipped = count(sys.argv[1])
    good = passed > 0 and failed == 0 and int(sys.argv[2]) == 0
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
