"""A tiny student and its prompts, which taopd-trainer trains; TAOPD_BIN_DIR says where the program is."""

import json
import os
import pathlib
import subprocess

import tiny_model


class TinyStudent:
    def __init__(self, directory, draw, num_prompts, num_steps):
        self.directory, self.num_steps = pathlib.Path(directory), num_steps
        self.path = self.directory / "student"
        tiny_model.write(self.path, seed=21)
        self.prompts = [[draw.randrange(250) for _ in range(draw.randrange(4, 16))] for _ in range(num_prompts)]
        (self.directory / "train.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in self.prompts))
        (self.directory / "train.yaml").write_text("run: {name: tiny}\n")

    def try_training(self, name, settings):
        """The exit code and the output of a run."""
        base = [f"run.dir={self.directory / name}", f"student.model={self.path}", f'data.train=["{self.directory / "train.jsonl"}"]',
                "student.dtype=float32", "teacher.top_k=8", "data.max_prompt_length=16", "data.max_response_length=24", "rollout.n=2",
                "rollout.kv_cache_gb=0.01", f"trainer.total_steps={self.num_steps}", "trainer.save_every=0", "trainer.eval_every=0",
                "trainer.num_threads=1"]
        command = [pathlib.Path(os.environ["TAOPD_BIN_DIR"]) / "taopd-trainer", "train", "--config", self.directory / "train.yaml"]
        for setting in [*base, *settings]:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout[-2000:] + done.stderr[-3000:]

    def train(self, name, settings):
        """The rows of the metrics of a run that succeeds."""
        code, output = self.try_training(name, settings)
        assert code == 0, output
        return [json.loads(line) for line in (self.directory / name / "metrics.jsonl").read_text().splitlines()]
