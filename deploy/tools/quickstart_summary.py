"""Writes RUN_DIR/summary.json from RUN_DIR/evaluation/*.json and prints the table of the quickstart.

Usage: quickstart_summary.py RUN_DIR TRAINING_MS
"""

import json
import pathlib
import sys

ROWS = (("teacher", "teacher"), ("student_before", "student before"), ("student_after", "student after"),
        ("student_after_greedy", "  without sampling"))


def split_result(name):
    """Splits student_before into (student, _before), and teacher into (teacher, '')."""
    who, _, when = name.partition("_")
    return who, "_" + when if when else ""


def last_step(metrics_path):
    with open(metrics_path, encoding="utf-8") as lines:
        return max(json.loads(line)["step"] for line in lines)


def summarize(results, steps, seconds):
    """Flattens `results`, name -> the JSON of `taopd-trainer eval`: teacher_accuracy, teacher_accuracy_low,
    teacher_accuracy_high, teacher_accuracy_n, student_accuracy_before, student_accuracy_before_low, ..."""
    summary = {}
    for name, result in results.items():
        who, when = split_result(name)
        measure = "accuracy" if result["measure"] == "accuracy" else "kl_to_teacher"
        key = f"{who}_{measure}{when}"
        summary[key] = result[measure]
        for bound in ("low", "high"):
            if f"{measure}_{bound}" in result:
                summary[f"{key}_{bound}"] = result[f"{measure}_{bound}"]
        summary[key + "_n"] = int(result["n"])
    summary["steps"] = steps
    summary["seconds"] = seconds
    return summary


def table(results):
    lines = []
    for name, label in ROWS:
        if name not in results:
            continue
        result = results[name]
        if result["measure"] == "accuracy":
            value = (f"{result['accuracy']:7.1%}   95 % interval {result['accuracy_low']:.1%} to "
                     f"{result['accuracy_high']:.1%}   n = {int(result['n'])}")
            head = "accuracy"
        else:
            value = f"{result['kl_to_teacher']:7.4f}   n = {int(result['n'])} texts"
            head = "KL to the teacher (nats per token)"
        if not lines:
            lines.append(f"{'':16}{head}")
        lines.append(f"{label:16}{value}")
    return "\n".join(lines)


def main():
    run_dir, training_ms = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    results = {}
    for name, _ in ROWS:
        path = run_dir / "evaluation" / f"{name}.json"
        if path.exists():
            results[name] = json.loads(path.read_text(encoding="utf-8"))
    summary = summarize(results, last_step(run_dir / "metrics.jsonl"), training_ms / 1000)
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
