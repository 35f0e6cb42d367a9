"""Runs the unittest cases of a file and prints each by name, in the form that tests/run counts: passed, failed, skipped.

Usage: run_python_test.py NAME_test.py [CLASS.TEST ...]
"""

import pathlib
import sys
import unittest


class _Result(unittest.TextTestResult):
    def __init__(self, stream, descriptions, verbosity):
        super().__init__(stream, descriptions, verbosity)
        self.dots = False  # each name stands at the beginning of a line

    def addSuccess(self, test):
        super().addSuccess(test)
        print(f"[       OK ] {test.id()} (0 ms)")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"{test.id()}: {reason}\n[  SKIPPED ] {test.id()} (0 ms)")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        print(f"[  FAILED  ] {test.id()} (0 ms)")

    def addError(self, test, error):
        super().addError(test, error)
        print(f"[  FAILED  ] {test.id()} (0 ms)")


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1]).resolve()
    sys.path[0] = str(file.parent)
    unittest.main(module=file.stem, argv=sys.argv[1:], testRunner=unittest.TextTestRunner(resultclass=_Result))
