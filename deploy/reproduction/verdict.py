"""Judges a claim by its rule."""

import dataclasses
import math
import re
import statistics

from run_metrics import NOISE

HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "not shown", "unclear", "not run"


@dataclasses.dataclass(frozen=True)
class Verdict:
    claim: object
    word: str
    figures: dict  # name -> values of the seeds; empty if not measured
    seeds: int  # number of seeds that have every figure of the rule


def identifier(name):
    """Returns a figure's name in a rule: "teacher's tail, k = 2" is teachers_tail_k_2."""
    return re.sub(r"\W+", "_", name.replace("'", ""))


def noise(seeds):
    """Returns NOISE, which is that of three seeds, for this number of seeds."""
    return NOISE * math.sqrt(3 / min(seeds, 3))


def _measured(claim, directory):
    """Returns the figures of one seed, without those whose runs are missing."""
    found = {}
    for name, measure in claim.figures.items():
        try:
            found[name] = measure.value(directory)
        except (FileNotFoundError, KeyError):
            pass
    return found


def _needed(claim):
    return {name for name in claim.figures if re.search(rf"\b{identifier(name)}\b", claim.rule)}


def judge(claim, directories):
    """Returns the verdict over the seeds' directories. A seed that lacks a figure of the rule does not count."""
    of_seeds = [found for found in (_measured(claim, directory) for directory in directories)
                if _needed(claim) <= set(found)]
    if not of_seeds:
        return Verdict(claim, NOT_RUN, {}, 0)
    figures = {name: [found[name] for found in of_seeds if name in found] for name in claim.figures}
    names = {identifier(name): statistics.fmean(values) for name, values in figures.items() if values}
    names |= {"NOISE": noise(len(of_seeds)), "abs": abs, "max": max, "min": min}
    scope = {"__builtins__": {}}
    if eval(claim.rule, scope, names):
        word = HOLDS
    else:
        word = UNCLEAR if eval(claim.unclear, scope, names) else FAILS
    return Verdict(claim, word, {name: values for name, values in figures.items() if values}, len(of_seeds))
