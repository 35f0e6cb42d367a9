"""deploy/tools/track with a stand-in for the tracker's package: what it sends, and that it sends each step once."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from environment import ROOT, temporary_path, write_script
from programs import WAIT_S, wait_for
from run_directory import make_run, metrics_line

HERE = pathlib.Path(__file__).resolve().parent
TRACK = ROOT / "deploy/tools/track"


class TrackTest(unittest.TestCase):
    def setUp(self):
        path = temporary_path(self)
        self.path, self.tool = path, TRACK
        self.run_dir = make_run(path / "run")
        self.log = path / "log.jsonl"
        self.environment = {**os.environ, "PYTHONPATH": str(HERE / "fake"), "FAKE_LOG": str(self.log)}

    def start(self, *arguments):
        process = subprocess.Popen([sys.executable, self.tool, self.run_dir, "--to", "wandb", "--interval", "0.02", *arguments],
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, code=0):
        """Waits for the tool, which must end with this exit code, and returns its output."""
        output, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, code, output)
        return output

    def track(self, code=0):
        return self.finish(self.start(), code)

    def calls(self, key):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [call for call in map(json.loads, lines) if key in call]

    def steps(self):
        return [call["step"] for call in self.calls("values") if call["step"] is not None]

    def append(self, text):
        with open(self.run_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(text)

    def test_a_finished_run(self):
        self.track()
        [begun] = self.calls("init")
        self.assertEqual(begun["name"], "addition")
        self.assertEqual(begun["config"], {"run.name": "addition", "run.seed": 3, "optimizer.lr": 1e-6,
                                           "optimizer.betas": [0.9, 0.98],
                                           "objective.terms": '[{name: "ta_opd", weight: 1.0}]'})
        sent = self.calls("values")
        self.assertEqual(sent[0], {"step": 1, "values": {"loss/mean": 0.5, "_timestamp": 1767225601}})
        self.assertEqual(sent[1]["values"]["eval/accuracy"], 0.75)
        self.assertEqual(sent[2]["values"]["samples"]["data"], [[0, "before", "1+1=", "2", "2", True],
                                                                [2, "eval", "1+2=", "4", None, None]])
        self.assertEqual(self.calls("summary"), [{"summary": {"student_accuracy_after": 0.75}}])
        self.assertEqual(self.calls("artifact"), [{"artifact": str(self.run_dir / "report.html")}])
        self.assertEqual(len(self.calls("finish")), 1)

    def test_a_tree_below_a_folder_called_build_makes_the_report(self):
        tree = self.path / "build/tree"
        self.tool = shutil.copytree(TRACK.parent, tree / "deploy/tools") / TRACK.name
        write_script(tree / "build/cpu/bin/taopd-trainer", 'touch "$4"')  # report RUN_DIR -o FILE
        (self.run_dir / "report.html").unlink()
        self.track()
        self.assertEqual(len(self.calls("artifact")), 1)

    def test_steps_that_a_resumed_run_repeats_are_sent_once(self):
        self.track()
        (self.run_dir / "metrics.jsonl").write_text("".join(metrics_line(step, a=1) for step in (1, 2, 3)))
        self.track()
        self.assertEqual(self.steps(), [1, 2, 3])
        ids = [call["init"] for call in self.calls("init")]
        self.assertEqual(ids[0], ids[1])
        # Another run in the directory is another run of the tracker.
        (self.run_dir / "metrics.jsonl").write_text(metrics_line(0, a=1))
        self.track()
        self.assertNotEqual(self.calls("init")[-1]["init"], ids[0])
        self.assertEqual(self.steps(), [1, 2, 3, 0])

    def test_evaluations_beside_training_are_sent_once(self):
        evaluation = {"eval/accuracy": 0.5}
        lines = [metrics_line(0, **evaluation), metrics_line(1, a=1), metrics_line(2, a=1), metrics_line(3, a=1),
                 metrics_line(2, **evaluation), metrics_line(4, a=1), metrics_line(4, **evaluation)]
        (self.run_dir / "metrics.jsonl").write_text("".join(lines[:4]))
        self.track()
        # The evaluation of step 2 has come after the tool has sent step 3.
        (self.run_dir / "metrics.jsonl").write_text("".join(lines))
        self.track()
        self.track()
        sent = [(call["step"], call["values"].get("eval/step"), call["values"].get("a"))
                for call in self.calls("values") if call["step"] is not None]
        self.assertEqual(sent, [(0, None, None), (1, None, 1), (2, None, 1), (3, None, 1), (3, 2, None), (4, None, 1),
                                (4, None, None)])

    def test_follows_until_the_model_is_written(self):
        model = self.run_dir / "model" / "config.json"
        model.unlink()
        process = self.start("--follow")
        wait_for(lambda: self.steps() == [1, 2], "the steps")
        self.append(metrics_line(3, a=1) + '{"step": 4, "ti')
        wait_for(lambda: self.steps() == [1, 2, 3], "the steps")
        self.append('me": 7, "a": 2}\n')
        wait_for(lambda: self.steps() == [1, 2, 3, 4], "the steps")
        # The resumed run goes back to step 2 while the tool runs.
        (self.run_dir / "metrics.jsonl").write_text("".join(metrics_line(step, a=1) for step in range(1, 12)))
        model.write_text("{}")
        self.finish(process)
        self.assertEqual(self.steps(), list(range(1, 12)))
        self.assertEqual(len(self.calls("finish")), 1)

    def test_follows_a_run_that_is_continued_until_its_adapter_is_written(self):
        (self.run_dir / "model/config.json").rename(self.run_dir / "model/adapter_config.json")
        (self.run_dir / "continued").touch()
        process = self.start("--follow")
        wait_for(lambda: self.steps() == [1, 2], "the steps")
        self.append(metrics_line(3, a=1))
        (self.run_dir / "continued").unlink()
        self.finish(process)
        self.assertEqual((self.steps(), len(self.calls("finish"))), ([1, 2, 3], 1))

    def test_a_tracker_that_is_down_is_tried_again(self):
        down = pathlib.Path(f"{self.log}.down")
        down.touch()
        process = self.start()
        wait_for(lambda: self.calls("down"), "a call that fails")
        down.unlink()
        self.assertIn("wandb does not answer, the next try is in 1 s: no route", self.finish(process))
        self.assertEqual(self.steps(), [1, 2])

    def test_a_signal_ends_it(self):
        (self.run_dir / "model" / "config.json").unlink()
        process = self.start("--follow")
        wait_for(lambda: self.steps() == [1, 2], "the steps")
        process.send_signal(signal.SIGTERM)
        self.assertEqual((process.wait(timeout=WAIT_S), len(self.calls("finish"))), (0, 1))

    def test_nothing_to_send(self):
        (self.run_dir / "metrics.jsonl").write_text("")
        self.assertIn("metrics.jsonl has no lines", self.track(code=1))
