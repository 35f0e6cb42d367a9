"""deploy/tools/draw_staleness on small stand-ins for runs: where a point lies, and what is left out."""

import json
import re
import sys
import unittest

from environment import ROOT, run, temporary_path

DRAW = ROOT / "deploy/tools/draw_staleness"


class DrawStalenessTest(unittest.TestCase):
    def setUp(self):
        self.dir = temporary_path(self)

    def make_run(self, seed, name, accuracy, sample_size):
        run = self.dir / f"seed-{seed}" / name
        run.mkdir(parents=True)
        # The mean over the steps counts.
        rows = [{"step": step, "policy/effective_sample_size": sample_size + 0.01 * (step - 2)} for step in range(1, 4)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if accuracy is not None:
            (run / "summary.json").write_text(json.dumps({"student_accuracy_after": accuracy}))

    def draw(self):
        picture = self.dir / "pictures" / "staleness.svg"
        done = run([sys.executable, DRAW, self.dir, "-o", picture])
        return done, picture.read_text(encoding="ascii") if picture.exists() else ""

    def test_points_are_means_and_bars_are_ranges(self):
        for seed, accuracy in ((0, 0.5), (1, 1.0)):
            self.make_run(seed, "ta_opd_async_steps=0", accuracy, 1.0)
            self.make_run(seed, "ta_opd_async_steps=4", 0.25, 0.85)
        self.make_run(0, "full_async_steps=4", None, 1.0)
        done, picture = self.draw()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("full_async_steps=4 has not finished", done.stderr)
        self.assertNotIn(">full<", picture)
        # The accuracy's panel goes from 0 at 234 to 1 at 44, that of the sample size from 0.8 at 506 to 1 at 316.
        lines = [[float(number) for number in re.findall(r"[\d.]+", points)]
                 for points in re.findall(r'<polyline points="([^"]*)"', picture)]
        self.assertEqual([line[1::2] for line in lines], [[234 - 0.75 * 190, 234 - 0.25 * 190], [316, 506 - 0.25 * 190]])
        self.assertIn(f'y1="{234 - 0.5 * 190}" y2="{234 - 190.0}"', picture)

    def test_nothing_to_draw(self):
        done, picture = self.draw()
        self.assertEqual((done.returncode, picture), (1, ""))
        self.assertIn("no finished run of the name LOSS_async_steps=N", done.stderr)


if __name__ == "__main__":
    unittest.main()
