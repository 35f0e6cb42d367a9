"""deploy/tools/track with the trackers' own packages: W&B in its offline mode, a server of MLflow, trackio."""

import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import unittest
import urllib.request

from environment import ROOT, expect, python_with, temporary_path
from programs import WAIT_S, free_port
from run_directory import make_run

HERE = pathlib.Path(__file__).resolve().parent
PLACE = pathlib.Path(os.environ["TAOPD_TRACKERS_VENV"])
PYTHON = PLACE / "bin/python"


def setUpModule():
    python_with(PLACE, "-r", ROOT / "tests/requirements-trackers.txt")


class TrackersTest(unittest.TestCase):
    def setUp(self):
        self.dir = temporary_path(self)
        self.run_dir = make_run(self.dir / "run")

    def start(self, tracker, **environment):
        return subprocess.Popen([PYTHON, ROOT / "deploy/tools/track", self.run_dir, "--to", tracker], cwd=self.dir,
                                env={**os.environ, "HOME": str(self.dir), **environment}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def finish(self, process):
        output = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 0, output)

    def test_wandb_offline(self):
        self.finish(self.start("wandb", WANDB_MODE="offline"))
        [file] = self.dir.glob("wandb/offline-run-*/*.wandb")
        seen = json.loads(expect(0, [PYTHON, HERE / "wandb_records.py", file]).stdout)
        self.assertEqual(seen["name"], "addition")
        self.assertEqual((seen["config"]["optimizer.lr"], seen["config"]["run.seed"]), (1e-6, 3))
        self.assertEqual((seen["history"]["1"]["loss/mean"], seen["history"]["2"]["eval/accuracy"]), (0.5, 0.75))
        self.assertEqual(seen["history"]["1"]["_timestamp"], 1767225601)
        self.assertEqual(seen["summary"]["student_accuracy_after"], 0.75)
        self.assertEqual(seen["summary"]["samples.nrows"], 2)
        self.assertIn("report", [kind for kind, _ in seen["artifacts"]])

    def test_trackio(self):
        self.finish(self.start("trackio", TRACKIO_DIR=str(self.dir / "trackio")))
        database = sqlite3.connect(self.dir / "trackio/taopd.db")
        rows = [(step, json.loads(text)) for step, text in database.execute("select step, metrics from metrics order by id")]
        self.assertEqual(rows[0], (1, {"loss/mean": 0.5}))
        self.assertEqual(rows[1], (2, {"loss/mean": 0.25, "eval/accuracy": 0.75}))
        self.assertEqual(rows[2][1]["samples"]["_value"][1]["response"], "4")
        [[config]] = database.execute("select config from configs")
        self.assertEqual(json.loads(config)["optimizer.lr"], 1e-6)
        self.assertEqual(database.execute("select count(*) from artifacts").fetchone(), (1,))
        database.close()

    def mlflow(self, port, call, body):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/2.0/mlflow/{call}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    # The server starts only when the tool has found that there is none.
    def test_mlflow_server_that_comes_late(self):
        port = free_port()
        uri = f"http://127.0.0.1:{port}"
        tool = self.start("mlflow", MLFLOW_TRACKING_URI=uri)
        self.addCleanup(tool.kill)
        line = ""
        while "does not answer" not in line:
            line = tool.stderr.readline()
            self.assertTrue(line, "the tool has ended")
        server = subprocess.Popen([PLACE / "bin" / "mlflow", "server", "--port", str(port), "--workers", "1",
                                   "--backend-store-uri", f"sqlite:///{self.dir}/mlflow.db",
                                   "--artifacts-destination", self.dir / "artifacts"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGTERM)
        self.finish(tool)
        experiment = self.mlflow(port, "experiments/search", {"max_results": 10, "filter": "name = 'taopd'"})
        [run] = self.mlflow(port, "runs/search",
                            {"experiment_ids": [experiment["experiments"][0]["experiment_id"]]})["runs"]
        self.assertEqual((run["info"]["run_name"], run["info"]["status"]), ("addition", "FINISHED"))
        params = {param["key"]: param["value"] for param in run["data"]["params"]}
        self.assertEqual((params["optimizer.lr"], params["optimizer.betas"]), ("1e-06", "[0.9, 0.98]"))
        metrics = {metric["key"]: (metric["value"], metric["step"]) for metric in run["data"]["metrics"]}
        self.assertEqual((metrics["loss/mean"], metrics["eval/accuracy"]), ((0.25, 2), (0.75, 2)))
        self.assertEqual(metrics["summary/student_accuracy_after"][0], 0.75)
        files = {path.name for path in (self.dir / "artifacts").rglob("*") if path.is_file()}
        self.assertEqual(files, {"report.html", "samples.json"})
