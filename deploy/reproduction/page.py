"""The page (HTML) and the table (Markdown) of deploy/reproduce."""

import dataclasses
import html as markup
import os
import pathlib
import re
import statistics

from verdict import FAILS, HOLDS, NOT_RUN, UNCLEAR, noise

MEANING = {HOLDS: "the rule is met", FAILS: "the rule is not met: the claim does not show at this size",
           UNCLEAR: "the measurement cannot decide"}


@dataclasses.dataclass(frozen=True)
class About:
    date: str
    command: str
    seeds: int
    is_quick: bool


def machine():
    """Returns the processor, cores and memory as text."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    memory = re.search(r"^MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="ascii"), re.M)
    parts = [name[1].strip() if name else os.uname().machine, f"{os.cpu_count()} cores"]
    if memory:
        parts.append(f"{int(memory[1]) / 2**20:.0f} GiB")
    return ", ".join(parts).encode("ascii", "replace").decode()


def number(name, value):
    if name.startswith(("accuracy", "greedy")):
        return f"{value:.1%}"
    if value == 0 or 1e-4 <= abs(value) < 1e5:
        return f"{value:.3f}" if abs(value) < 10 and value % 1 else f"{value:.0f}"
    return f"{value:.1e}"


def figure(name, values):
    mean = number(name, statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} [{number(name, min(values))}, {number(name, max(values))}]"


def summary(verdicts):
    counts = [f"{word}: {sum(v.word == word for v in verdicts)}" for word in (HOLDS, FAILS, UNCLEAR, NOT_RUN)
              if any(v.word == word for v in verdicts)]
    return ", ".join(counts)


def introduction(verdicts, about):
    """Returns sentences on how the figures were made."""
    steps = "40 steps" if about.is_quick else "120 steps"
    seeds = sorted({v.seeds for v in verdicts if v.word != NOT_RUN})
    of_seeds = " or ".join(map(str, seeds)) or "no"
    return [f"{about.date}, {machine()}: `{about.command}`.",
            f"{len(verdicts)} claims; {summary(verdicts)}. {of_seeds} seed{'s' * (seeds != [1])}; a run has {steps} unless "
            f"its claim says otherwise. NOISE is {noise(max(seeds, default=1)):.3f}. With several seeds a figure is "
            "their mean [lowest, highest]."]


def markdown(verdicts, about):
    lines = [*introduction(verdicts, about), "", "| claim | paper | here | rule | verdict |", "|---|---|---|---|---|"]
    for v in verdicts:
        here = "; ".join(f"{name}: {figure(name, values)}" for name, values in v.figures.items()) or "-"
        seeds = f" ({v.seeds} seed{'s' * (v.seeds > 1)})" if v.seeds else ""
        note = f" {v.claim.note}" if v.claim.note else ""
        lines.append(f"| **{v.claim.name}**: {v.claim.claim}{note} ({v.claim.section}) | {v.claim.paper} | {here} | "
                     f"`{v.claim.rule}` | **{v.word}**{seeds} |")
    return "\n".join(lines) + "\n"


STYLE = """
:root { --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --paper: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117; --card: #151b23; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 0; }
p { margin: .4rem 0; }
a { color: inherit; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.list { list-style: none; margin: 1rem 0 2rem; padding: 0; display: grid; gap: .3rem 1.5rem;
        grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); }
.list li { display: flex; gap: .6rem; align-items: baseline; }
.word { flex: none; font-size: .8rem; font-weight: 600; min-width: 5.2rem; text-align: center; border-radius: 1rem;
        padding: .05rem .6rem; color: #fff; }
.holds { background: #1a7f37; } .not-shown { background: #b35900; } .unclear { background: #6e5494; }
.not-run { background: #6e7781; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem;
          margin: 0 0 1rem; }
.head { display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: baseline; }
dl { display: grid; grid-template-columns: 8.5rem 1fr; gap: .3rem 1rem; margin: .7rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td { padding: .05rem 1.2rem .05rem 0; vertical-align: top; }
td + td { white-space: nowrap; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0; } dt { margin-top: .5rem; font-size: .85rem; } td { padding-right: .8rem; }
  td + td { white-space: normal; }
}
"""


def _chip(word):
    return f'<span class="word {_anchor(word)}">{word}</span>'


def _anchor(name):
    return re.sub(r"\W+", "-", name).strip("-")


def _with_code(text):
    """Returns escaped text in which `...` is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", markup.escape(text))


def _links(verdict, run_dir):
    """Returns links to the existing reports of a claim's runs."""
    found = []
    for seed in range(verdict.seeds):
        names = [(r.name, f"{r.name}/report.html") for r in verdict.claim.runs]
        names += [("bandit", "bandit.html")] if verdict.claim.name in ("bandit", "landscape") else []
        for name, path in names:
            if (run_dir / f"seed-{seed}" / path).exists():
                found.append(f'<a href="seed-{seed}/{markup.escape(path)}">{markup.escape(name)}, seed {seed}</a>')
    return " &middot; ".join(found)


def _section(verdict, run_dir):
    claim = verdict.claim
    rows = "".join(f"<tr><td>{markup.escape(name)}</td><td>{markup.escape(figure(name, values))}</td></tr>"
                   for name, values in verdict.figures.items())
    links = _links(verdict, run_dir)
    note = f'<p class="soft">{markup.escape(claim.note)}</p>' if claim.note else ""
    seeds = f' <span class="soft">{verdict.seeds} seed{"s" * (verdict.seeds > 1)}</span>' if verdict.seeds else ""
    parts = [("Paper", f"{markup.escape(claim.paper)} <span class=\"soft\">({markup.escape(claim.section)})</span>"),
             ("Here", f"<table>{rows}</table>" if rows else "not run"),
             ("Rule", f"<code>{markup.escape(claim.rule)}</code>")]
    if links:
        parts.append(("Runs", f"<details><summary>reports</summary>{links}</details>"))
    body = "".join(f"<dt>{title}</dt><dd>{text}</dd>" for title, text in parts)
    return (f'<section id="{_anchor(claim.name)}"><div class="head">{_chip(verdict.word)}'
            f"<h2>{markup.escape(claim.name)}</h2>{seeds}</div>"
            f"<p>{markup.escape(claim.claim)}</p>{note}<dl>{body}</dl></section>")


def html(verdicts, about, run_dir):
    """Returns the page, with links relative to `run_dir`."""
    items = "".join(f'<li>{_chip(v.word)}<a href="#{_anchor(v.claim.name)}">{markup.escape(v.claim.name)}</a></li>'
                    for v in verdicts)
    meanings = ", ".join(f"<b>{word}</b>: {text}" for word, text in MEANING.items())
    has_comparison = (run_dir / "compare.html").exists()
    compare = '<p><a href="compare.html">All runs, drawn over each other</a></p>' if has_comparison else ""
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<title>The paper's claims, reproduced</title>"
            f"<style>{STYLE}</style></head><body><main><h1>The paper's claims at the size of a laptop</h1>"
            + "".join(f'<p class="soft">{_with_code(line)}</p>' for line in introduction(verdicts, about))
            + f'<p class="soft">{meanings}.</p>{compare}<ul class="list">{items}</ul>'
            + "".join(_section(v, run_dir) for v in verdicts) + "</main></body></html>\n")
