"""The runs on which the claims rest."""

import dataclasses

from run_names import run_name

QUICK_STEPS = 40
# These stand before the settings of a run. --quick trains for a third of the steps and evaluates on fewer problems.
BASE = (("trainer.num_threads", 1),)
QUICK_BASE = BASE + (("trainer.total_steps", QUICK_STEPS), ("eval.num_prompts", 200), ("trainer.eval_every", 10))
# With these settings a student does not learn: runs of one seed see the same rollouts, whatever their objective is.
FROZEN = (("optimizer.lr", 1e-12), ("trainer.eval_at_start", "false"), ("trainer.eval_every", 0),
          ("eval.num_prompts", 4))
FROZEN_STEPS, QUICK_FROZEN_STEPS = 40, 12
TURNS, QUICK_TURNS = 3, 2


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of the addition recipe. Runs are compared by all of their fields."""
    name: str
    settings: tuple = ()  # (key, value), ...
    teacher: str = "far"  # far is the recipe's own
    protocol: str = "grpc"
    start_from: object = None  # a Run whose trained student is this one's start
    quick: bool = True  # whether --quick makes it
    alone: bool = False  # whether nothing may run beside it


def objective(name, *settings, teacher="far", quick=True):
    """Returns a run that is named after what differs from the recipe."""
    settings = (("objective.name", name),) + settings
    suffix = "" if teacher == "far" else f"_teacher={teacher}"
    return Run(run_name([(key, str(value)) for key, value in settings]) + suffix, settings, teacher, quick=quick)


def frozen(name):
    return Run(f"frozen_{name}", FROZEN + (("objective.name", name),))


def turn(name, number):
    """Returns one of the runs of `name` that are timed in turn with those of another objective."""
    return Run(f"turn_{number}_{name}", FROZEN + (("objective.name", name),), quick=number < QUICK_TURNS, alone=True)


def words(run, run_dir, is_quick):
    """Returns settings and options of a run for a line of deploy/quickstart --runs."""
    settings = QUICK_BASE if is_quick else BASE
    if run.settings[:len(FROZEN)] == FROZEN:
        settings += (("trainer.total_steps", QUICK_FROZEN_STEPS if is_quick else FROZEN_STEPS),)
    found = [f"{key}={value}" for key, value in settings + run.settings]
    if run.teacher != "far":
        found.append(f"--teacher={run_dir}/teachers/seed-{{seed}}/{run.teacher}/model")
    if run.protocol != "grpc":
        found.append(f"--protocol={run.protocol}")
    if run.start_from is not None:
        found.append(f"student.model={run_dir}/seed-{{seed}}/{run.start_from.name}/model")
    return found
