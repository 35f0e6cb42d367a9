"""A run's event files in the real TensorBoard: numbers, settings (HPARAMS) and samples (TEXT)."""

import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request

from environment import BIN_DIR, ROOT, expect, python_with, temporary_path
from waiting import WAIT_S, wait_for

PLACE = pathlib.Path(os.environ["TAOPD_TRACKERS_VENV"])


def setUpModule():
    python_with(PLACE, "-r", ROOT / "tests/requirements-trackers.txt")


def trainer(command, *arguments):
    expect(0, [BIN_DIR / "taopd-trainer", command, *arguments], cwd=ROOT)


class TensorBoardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = temporary_path(cls)
        data = cls.dir / "data"
        expect(0, [sys.executable, ROOT / "deploy/examples/addition/generate.py", data, "--train", "8", "--val", "8",
                   "--teacher-sft", "36", "--student-sft", "36"])
        trainer("sft", "--config", ROOT / "deploy/recipes/addition/student_sft.yaml", "--set", f"run.dir={cls.dir}/student",
                "--set", f"model.tokenizer={data}/tokenizer", "--set", f"data.train=[{data}/student_sft.jsonl]",
                "--set", "trainer.total_steps=1")
        config = cls.dir / "train.yaml"
        # The student is its own teacher, so that no server is needed.
        config.write_text(f"student: {{model: {cls.dir}/student/model}}\n"
                          "teacher: {kind: self, top_k: 4}\n"
                          f"data: {{train: [{data}/train.jsonl], val: [{data}/val.jsonl], train_batch_size: 2,\n"
                          "  max_prompt_length: 11, max_response_length: 8}\n"
                          "rollout: {n: 1, kv_cache_gb: 0.05}\n"
                          "trainer: {total_steps: 2, mini_batch_size: 2, eval_every: 1, num_threads: 1}\n"
                          "eval: {n: 1, max_response_length: 8, num_prompts: 4, answer_pattern: '#(.*)$'}\n", encoding="utf-8")
        for name, rate in (("slow", "1e-4"), ("fast", "1e-3")):
            trainer("train", "--config", config, "--set", f"run.dir={cls.dir}/runs/{name}", "--set", f"optimizer.lr={rate}")
        server = subprocess.Popen([PLACE / "bin/tensorboard", "--logdir", cls.dir / "runs", "--port", "0", "--load_fast=false",
                                   "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(server.stderr.close)
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.terminate)
        line = ""
        while "http://" not in line:
            line = server.stderr.readline()
            assert line, "tensorboard has ended"
        cls.url = line[line.index("http://"):].split()[0].rstrip("/")
        wait_for(lambda: len(cls.get("runs")) == 2, "both runs", server)

    @classmethod
    def get(cls, path, body=None, **query):
        url = f"{cls.url}/data/{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            return json.loads(reply.read())

    def test_numbers(self):
        points = self.get("plugin/scalars/scalars", run="slow/tensorboard", tag="loss/mean")
        self.assertEqual([step for _, step, _ in points], [1, 2])

    def test_settings(self):
        experiment = self.get("plugin/hparams/experiment", {"experimentName": ""})
        kinds = {info["name"]: info["type"] for info in experiment["hparamInfos"]}
        self.assertEqual(kinds["optimizer.lr"], "DATA_TYPE_FLOAT64")
        self.assertEqual(kinds["objective.name"], "DATA_TYPE_STRING")
        self.assertEqual(kinds["optimizer.offload"], "DATA_TYPE_BOOL")
        groups = self.get("plugin/hparams/session_groups", {
            "experimentName": "", "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_RUNNING"],
            "colParams": [{"hparam": "optimizer.lr", "order": "ORDER_ASC"}], "startIndex": 0, "sliceSize": 10})["sessionGroups"]
        self.assertEqual([group["hparams"]["optimizer.lr"] for group in groups], [1e-4, 1e-3])
        self.assertEqual([group["hparams"]["trainer.total_steps"] for group in groups], [2, 2])
        [loss] = [metric["value"] for metric in groups[0]["metricValues"] if metric["name"]["tag"] == "loss/mean"]
        points = self.get("plugin/scalars/scalars", run="slow/tensorboard", tag="loss/mean")
        self.assertEqual(loss, points[-1][2])

    def test_samples(self):
        tags = self.get("plugin/text/tags")
        self.assertIn("samples/eval", tags["slow/tensorboard"])
        texts = self.get("plugin/text/text", run="slow/tensorboard", tag="samples/eval")
        with open(self.dir / "runs/slow/samples.jsonl", encoding="utf-8") as file:
            samples = [json.loads(line) for line in file]
        self.assertIn("<table>", texts[-1]["text"])
        for sample in samples:
            if sample["when"] == "eval" and sample["step"] == texts[-1]["step"]:
                self.assertIn(sample["prompt"].replace("<", "&lt;").replace(">", "&gt;"), texts[-1]["text"])
