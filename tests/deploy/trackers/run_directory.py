"""A run as taopd-trainer leaves it, with two steps and an evaluation."""

import json


def metrics_line(step, **values):
    return json.dumps({"step": step, "time": 1767225600 + step, **values}) + "\n"


def make_run(run_dir):
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "model" / "config.json").write_text("{}")
    (run_dir / "config.yaml").write_text('run:\n  name: "addition"\n  seed: 3\noptimizer:\n  lr: 1e-06\n  betas: [0.9, 0.98]\n'
                                         'objective:\n  terms: [{name: "ta_opd", weight: 1.0}]\n')
    (run_dir / "metrics.jsonl").write_text(metrics_line(1, **{"loss/mean": 0.5, "loss/grad_norm": None},
                                                        non_finite=["loss/grad_norm"]) +
                                           metrics_line(2, **{"loss/mean": 0.25, "eval/accuracy": 0.75}))
    (run_dir / "summary.json").write_text('{"student_accuracy_after": 0.75, "model": "x"}')
    (run_dir / "samples.jsonl").write_text('{"step":0,"when":"before","prompt":"1+1=","response":"2","answer":"2","correct":true}\n'
                                           '{"step":2,"when":"eval","prompt":"1+2=","response":"4"}\n')
    (run_dir / "report.html").write_text("<!DOCTYPE html>")
    return run_dir
