"""Trains 20 steps with a real vLLM as the teacher and with taopd-teacher, and compares every loss.

The same student, prompts and seed; vLLM sends no tail, so the trainer derives it from the top-k. TAOPD_VLLM names
vLLM's program (its wheel for CPUs runs the tiny model); COMPAT_VLLM_URL a running server instead. TAOPD_BIN_DIR holds
taopd-trainer and taopd-teacher.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import service
import tiny_model

NUM_STEPS = 20
# Two implementations in float32, and tails as 1 - mass: 2e-7 was seen. Far below what a wrong position, temperature
# or tail would change.
LOSS_TOLERANCE = 1e-3
# The parts of a metrics row that the two runs must share.
LOSSES = ("loss/mean", "loss/row_mean")


def settings(work, endpoint):
    return [f"run.dir={work}", f"student.model={work.parent / 'student'}",
            f'data.train=["{work.parent / "train.jsonl"}"]', f'teacher.endpoints=["{endpoint}"]',
            "student.dtype=float32", "teacher.top_k=8", "data.train_batch_size=4", "data.max_prompt_length=16",
            "data.max_response_length=24", "rollout.n=2", "rollout.kv_cache_gb=0.01", "trainer.mini_batch_size=2",
            f"trainer.total_steps={NUM_STEPS}", "trainer.save_every=0", "trainer.eval_every=0",
            "trainer.num_threads=1", "optimizer.lr=1e-3"]


def train(work, endpoint):
    """The rows of the steps' metrics."""
    command = [str(pathlib.Path(os.environ["TAOPD_BIN_DIR"]) / "taopd-trainer"), "train",
               "--config", str(work.parent / "train.yaml")]
    for setting in settings(work, endpoint):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss/mean" in row]


def main():
    if "COMPAT_VLLM_URL" not in os.environ and not os.access(os.environ.get("TAOPD_VLLM", ""), os.X_OK):
        print("skipped: TAOPD_VLLM names no program")
        return service.SKIPPED
    with tempfile.TemporaryDirectory() as directory, service.tiny_model_dir() as model:
        root = pathlib.Path(directory)
        tiny_model.write(root / "student", seed=21)
        draw = random.Random(5)
        prompts = [[draw.randrange(250) for _ in range(draw.randrange(4, 16))] for _ in range(40)]
        (root / "train.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts))
        (root / "train.yaml").write_text("run: {name: teacher}\n")
        with service.teacher(model) as teacher:
            ours = train(root / "ours", f"grpc://127.0.0.1:{teacher.grpc_port}")
        with service.given_vllm(model) as vllm:
            theirs = train(root / "theirs", "vllm+" + vllm.url)
    assert len(ours) == len(theirs) == NUM_STEPS, (len(ours), len(theirs))
    worst = 0.0
    for a, b in zip(ours, theirs):
        assert a["rollout/tokens"] == b["rollout/tokens"], (a["step"], a["rollout/tokens"], b["rollout/tokens"])
        assert a["policy/derived_tails"] == 0, a
        assert b["policy/derived_tails"] == b["rollout/tokens"], b
        worst = max([worst] + [abs(a[key] - b[key]) for key in LOSSES])
    print(f"{NUM_STEPS} steps, {sum(row['rollout/tokens'] for row in theirs):.0f} derived tails, losses from "
          f"{ours[0]['loss/mean']:.4f} to {ours[-1]['loss/mean']:.4f}, largest difference {worst:.1e}")
    assert worst <= LOSS_TOLERANCE, worst
    return 0


if __name__ == "__main__":
    sys.exit(main())
