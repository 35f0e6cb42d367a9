"""Reads how the evaluations at the end of a quickstart were made."""

import json


def temperatures(run_dirs):
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
