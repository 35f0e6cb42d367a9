"""tests/mutation/mutants.py: each fault finds its place in the sources exactly once."""

import pathlib
import unittest

from mutants import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]


class MutantsTest(unittest.TestCase):
    def test_every_place_exists_once(self):
        for mutant in MUTANTS:
            with self.subTest(mutant.name):
                text = (ROOT / mutant.file).read_text(encoding="utf-8")
                self.assertEqual(text.count(mutant.old), 1, f"{mutant.old!r} in {mutant.file}")
                self.assertNotEqual(mutant.old, mutant.new)

    def test_there_are_enough_and_names_are_unique(self):
        self.assertGreaterEqual(len(MUTANTS), 60)
        self.assertEqual(len({mutant.name for mutant in MUTANTS}), len(MUTANTS))
