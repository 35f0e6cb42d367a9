"""Stands in for taopd-trainer in quickstart_test.py and reproduce_test.py: the same command line and files, no numbers.
A student of "unnormalized" loses its task and has a large tail.

Appends what it was asked to $STUB_LOG. $STUB_TRAIN: "wait" makes `train` wait for a signal and end with 75, a number
makes it end with that. $STUB_WAIT_AFTER: a number of lines of `train` in the log after which `train` waits, too.
$STUB_REFUSE: a number makes `train` end with that before it replaces the run that is there.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("run_dirs", nargs="*")
parser.add_argument("--config")
parser.add_argument("--set", action="append", default=[])
parser.add_argument("--overwrite", action="store_true")
parser.add_argument("--resume", nargs="?", const="newest")
parser.add_argument("--model")
parser.add_argument("-o", "--output")
parser.add_argument("--objective")
parser.add_argument("--seed")
args = parser.parse_args()
settings = dict(assignment.split("=", 1) for assignment in args.set)


def log(**fields):
    with open(os.environ["STUB_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"command": args.command, "pid": os.getpid(), "settings": settings,
                               "resume": args.resume == "auto", **fields}) + "\n")


if args.command == "report":
    pathlib.Path(args.output).write_text(" ".join(args.run_dirs))
elif args.command == "config":
    print(f'data:\n  val: {settings.get("data.val", ["val.jsonl"])}\neval:\n  measure: "{settings.get("eval.measure", "accuracy")}"')
elif args.command == "objectives":
    print("ta_opd\n    The default.\nfull\n    Exact.")
elif args.command == "bandit":
    log(objective=args.objective)
    runs = [{"objective": name, "student_tail": 0.9 if name == "normalized" else 0.3,
             "full_kl": {"full": 0, "normalized": 2}.get(name, 0.1)} for name in args.objective.split(",")]
    pathlib.Path(args.output).write_text(json.dumps({"teacher": {"tail": 0.3}, "runs": runs}))
elif args.command == "eval":
    log(model=args.model)
    right = {"teacher": 0.9, "before": 0.25}.get(args.output.split("/")[-1].split(".")[0].split("_")[-1], 0.8)
    right = 0.05 if args.model and "/unnormalized/" in args.model else right
    result = {"measure": "accuracy", "accuracy": right, "accuracy_low": right - 0.05, "accuracy_high": right + 0.05, "n": 400,
              "temperature": float(settings.get("eval.temperature", 1))}
    if os.environ.get("STUB_MEASURE") == "kl":
        result = {"measure": "kl", "kl_to_teacher": right, "n": 64}
    pathlib.Path(args.output).write_text(json.dumps(result))
else:  # sft, train
    signals = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    log()
    if args.command == "train" and os.environ.get("STUB_REFUSE"):
        sys.exit(int(os.environ["STUB_REFUSE"]))
    run_dir = pathlib.Path(settings["run.dir"])
    if args.overwrite:
        for name in ("evaluation", "model"):
            shutil.rmtree(run_dir / name, ignore_errors=True)
        for name in ("config.yaml", "metrics.jsonl", "summary.json", "report.html", "fingerprint"):
            (run_dir / name).unlink(missing_ok=True)
    (run_dir / "model").mkdir(parents=True, exist_ok=True)
    policy = {"policy/student_tail": 0.25, "policy/teacher_tail": 0.125, "policy/entropy": 0.5}
    (run_dir / "model/config.json").write_text("{}")
    tail = 0.99 if settings.get("objective.name") == "unnormalized" else 0.75
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1, **policy, "policy/student_tail": tail}) + "\n" +
                                           10 * (json.dumps({"step": 7, "eval/accuracy": 0.5, **policy}) + "\n"))
    (run_dir / "config.yaml").write_text("run: {}\n")
    behavior = os.environ.get("STUB_TRAIN", "0") if args.command == "train" else os.environ.get("STUB_SFT", "0")
    if args.command == "train" and "STUB_WAIT_AFTER" in os.environ:
        with open(os.environ["STUB_LOG"], encoding="utf-8") as file:
            num_trains = sum(json.loads(line)["command"] == "train" for line in file)
        behavior = "wait" if num_trains > int(os.environ["STUB_WAIT_AFTER"]) else behavior
    if behavior == "wait":
        while not signals:
            time.sleep(0.01)
        time.sleep(0.2)  # a second signal would be seen
        log(signals=len(signals))
        sys.exit(75)
    sys.exit(int(behavior))
