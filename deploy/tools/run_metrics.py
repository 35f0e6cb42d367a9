"""Reads the numbers that a run has recorded, and how the evaluations at the end of a quickstart were made. Says how
runs of the addition recipe are compared, and puts the results into pages."""

import json
import re
import sys

LAST_STEPS = 10  # a metric at the end of a run is the mean over these
# Two accuracies are within noise of each other if the mean of their differences over three seeds is at most this. A
# single difference varies by more with the seeds of teacher, student and run.
NOISE = 0.05
# An objective fails if, on the mean of the seeds, it has at most this share of the accuracy of full.
FAILURE = 0.5


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


def temperatures_of(run_dirs):
    """Returns the temperatures at which the trained students were sampled, ascending; empty if none is recorded."""
    found = set()
    for run_dir in run_dirs:
        path = run_dir / "evaluation" / "student_after.json"
        if path.exists():
            found.add(json.loads(path.read_text(encoding="utf-8")).get("temperature"))
    return sorted(found - {None})


def joined(numbers):
    """Returns a list such as "0.6, 1"."""
    return ", ".join(f"{number:g}" for number in numbers)


def replace_part(path, part, text, tool):
    """Replaces what is between "<!-- begin: PART -->" and "<!-- end -->" in a file. Ends `tool` if there is no such part."""
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(rf"(<!-- begin: {re.escape(part)} -->\n).*?(<!-- end -->)",
                           lambda match: f"{match[1]}\n{text}\n{match[2]}", before, flags=re.S)
    if not count:
        sys.exit(f"{tool}: {path} has no part \"{part}\"")
    path.write_text(after, encoding="utf-8")
