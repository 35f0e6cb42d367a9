"""Trains 20 steps with a real vLLM as the teacher and with taopd-teacher, and compares every loss.

The same student, prompts and seed; vLLM sends no tail, so the trainer derives it from the top-k. TAOPD_VLLM names
vLLM's program (its wheel for CPUs runs the tiny model); COMPAT_VLLM_URL a running server instead. TAOPD_BIN_DIR holds
taopd-trainer and taopd-teacher.
"""

import os
import random
import sys
import tempfile

import service
from tiny_student import TinyStudent

NUM_STEPS = 20
# Two implementations in float32, and tails as 1 - mass: 2e-7 was seen. Far below what a wrong position, temperature
# or tail would change.
LOSS_TOLERANCE = 1e-3
# The parts of a metrics row that the two runs must share.
LOSSES = ("loss/mean", "loss/row_mean")


def train(student, name, endpoint):
    """The rows of the steps' metrics."""
    settings = [f'teacher.endpoints=["{endpoint}"]', "data.train_batch_size=4", "trainer.mini_batch_size=2", "optimizer.lr=1e-3"]
    return [row for row in student.train(name, settings) if "loss/mean" in row]


def main():
    if "COMPAT_VLLM_URL" not in os.environ:
        service.skip_without_vllm()
    with tempfile.TemporaryDirectory() as directory, service.tiny_model_dir() as model:
        student = TinyStudent(directory, random.Random(5), 40, NUM_STEPS)
        with service.teacher(model) as teacher:
            ours = train(student, "ours", f"grpc://127.0.0.1:{teacher.grpc_port}")
        with service.given_vllm(model) as vllm:
            theirs = train(student, "theirs", "vllm+" + vllm.url)
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
