"""Reads the numbers that a run has recorded."""

import json


def series(run_dir):
    """Returns {metric: [(step, value), ...]} of a run's metrics.jsonl, without the steps that lack the metric."""
    found = {}
    with open(run_dir / "metrics.jsonl", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            for name, value in row.items():
                if isinstance(value, (int, float)) and name != "step":
                    found.setdefault(name, []).append((row["step"], value))
    return found
