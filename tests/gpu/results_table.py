#!/usr/bin/env python3
"""Prints the table of the sessions on GPUs, from the results files of tests/gpu/run in tests/bench/results/gpu."""

import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results/gpu"
PAGE = ROOT / "docs/gpu.md"
BEGIN, END = "<!-- from tests/gpu/results_table.py -->\n", "<!-- end of tests/gpu/results_table.py -->\n"
NOTHING = "**No part of this project has run on a GPU yet**, and no speed on a GPU is known.\n"


def read(path):
    """The head and the rows of a results file: {name: value} and [(part, verdict)]."""
    text = path.read_text(encoding="utf-8")
    head = dict(re.findall(r"^- ([^:\n]+): (.*)$", text, re.MULTILINE))
    missing = [name for name in ("date", "commit", "device", "driver", "command") if name not in head]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")[:2]) for line in text.splitlines()
            if line.startswith("| ") and not line.startswith("| part |")]
    if missing or not rows or not text.startswith("# GPU: "):
        raise ValueError(f"{path.name} is not a results file of a GPU: it lacks {missing[0] if missing else 'its parts'}")
    return head, rows


def describe(results_dir):
    files = sorted(path for path in results_dir.glob("*.md") if path.name != "README.md")
    if not files:
        return NOTHING
    lines = ["| results | GPU | driver | commit | passed | failed | skipped or not reached |", "|---|---|---|---|---|---|---|"]
    for path in files:
        head, rows = read(path)
        names = {verdict: ", ".join(part for part, found in rows if found == verdict) or "none"
                 for verdict in ("passed", "failed")}
        other = ", ".join(part for part, found in rows if found not in names) or "none"
        lines.append(f"| [{head['date']}](../tests/bench/results/gpu/{path.name}) | {head['device']} | {head['driver']} | "
                     f"{head['commit']} | {names['passed']} | {names['failed']} | {other} |")
    return "\n".join(lines) + "\n"


def with_text(page, text):
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + text + page[end:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into docs/gpu.md, between its markers, instead")
    arguments = parser.parse_args()
    found = describe(RESULTS)
    if arguments.write:
        PAGE.write_text(with_text(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        print(found, end="")
