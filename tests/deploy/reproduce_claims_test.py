"""deploy/reproduce --quick with the real programs: the claims that show at any size hold. Minutes."""

import pathlib
import tempfile
import unittest

from environment import DEPS, expect, make_clone

# These held in every run of every seed that was made, by a wide margin. The others are left to the reader of the page.
ROBUST = ("bandit", "landscape", "collapse", "normalized fails", "entropy, unnormalized", "uncertain teacher", "overlap",
          "variance, enumerated", "derived tail")


class ReproduceClaimsTest(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as directory:
            clone = make_clone(directory)
            done = expect(0, [clone / "deploy/reproduce", "--quick"],
                          env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(pathlib.Path.home()), "TAOPD_DEPS": str(DEPS),
                               "QUICKSTART_IS_BUILT": "1"})
            for name in ROBUST:
                self.assertRegex(done.stdout, rf"(?m)^holds +{name}:")
            print(pathlib.Path(clone, "runs/reproduce-quick/reproduction.md").read_text())
