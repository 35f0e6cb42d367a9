"""The measures of the claims, in the directory of one seed. A measure lists the runs that it reads,
and returns one number."""

import dataclasses
import json
import math
import statistics
from typing import Callable

from run_metrics import LAST_STEPS, series
from runs import TURNS, frozen, turn

# The first steps of a process warm up caches and thread pools.
WARM_UP_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Measure:
    runs: tuple
    value: Callable  # takes the seed's directory; raises FileNotFoundError or KeyError if a run lacks the number


def _points(directory, run, metric):
    return series(directory / run.name)[metric]


def _summary(run, key):
    def value(directory):
        return json.loads((directory / run.name / "summary.json").read_text(encoding="utf-8"))[key]
    return Measure((run,), value)


def accuracy(run):
    """Accuracy of the evaluation at the end."""
    return _summary(run, "student_accuracy_after")


def greedy(run):
    return _summary(run, "student_accuracy_after_greedy")


def start(run, metric):
    """Value of a metric in the first step, whose rollouts the first weights made."""
    return Measure((run,), lambda directory: _points(directory, run, metric)[0][1])


def last(run, metric):
    return Measure((run,),
                   lambda directory: statistics.fmean(v for _, v in _points(directory, run, metric)[-LAST_STEPS:]))


def growth(run, metric):
    """Mean of a metric at the end minus its value at the start."""
    return Measure((run,), lambda directory: last(run, metric).value(directory) - start(run, metric).value(directory))


def largest(run, metric, steps=math.inf):
    """Largest value of a metric in the first steps."""
    return Measure((run,), lambda directory: max(v for step, v in _points(directory, run, metric) if step <= steps))


def correlation(run, metric, other):
    """Pearson's correlation over the steps that have both metrics; a step without one takes the value of
    the next step with it."""
    def value(directory):
        recorded = series(directory / run.name)
        pairs = []
        for step, measured in recorded[other]:
            near = [v for s, v in recorded[metric] if s >= step]
            if near:
                pairs.append((near[0], measured))
        return statistics.correlation(*zip(*pairs))
    return Measure((run,), value)


def estimator_variance(name):
    """Variance over the steps of an objective's mean loss minus the exact one, on the same rollouts, times 1e6."""
    run, exact = frozen(name), frozen("full")

    def value(directory):
        errors = [v - e for (_, v), (_, e) in zip(_points(directory, run, "loss/row_mean"),
                                                  _points(directory, exact, "loss/row_mean"))]
        return 1e6 * statistics.fmean(error**2 for error in errors)
    return Measure((run, exact), value)


def turn_ratio(part):
    """`part`: overhead, error or pairs, of the times of steps of ta_opd and normalized that were measured in turn."""
    runs = tuple(turn(name, i) for i in range(TURNS) for name in ("normalized", "ta_opd"))

    def value(directory):
        ratios = []
        for i in range(TURNS):
            if not (directory / turn("ta_opd", i).name).exists():
                continue  # --quick makes fewer turns
            times = [dict(_points(directory, turn(name, i), "time/train_s")) for name in ("ta_opd", "normalized")]
            ratios += [times[0][step] / times[1][step] for step in sorted(times[0])[WARM_UP_STEPS:] if step in times[1]]
        if not ratios:
            raise FileNotFoundError("no turns")
        middle = statistics.median(ratios)
        # The interval of a median from the order statistics of the sample.
        ordered, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
        low = ordered[max(0, math.floor(len(ratios) / 2 - half))]
        high = ordered[min(len(ratios) - 1, math.ceil(len(ratios) / 2 + half))]
        return {"overhead": middle - 1, "error": (high - low) / 2, "pairs": len(ratios)}[part]
    return Measure(runs, value)


def bandit(name, field):
    """A number of `name`, an objective or the teacher, in the seed's bandit.json."""
    def value(directory):
        result = json.loads((directory / "bandit.json").read_text(encoding="utf-8"))
        if name == "teacher":
            return result["teacher"][field]
        return next(run for run in result["runs"] if run["objective"] == name)[field]
    return Measure((), value)


def enumerated(field):
    return Measure((), lambda directory: json.loads((directory / "variance.json").read_text(encoding="utf-8"))[field])
