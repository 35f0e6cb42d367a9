#!/usr/bin/env python3
"""Runs the parts of tests/gpu/run one after another, and writes their results file.

    session.py [--build-dir DIR] [--out DIR] [--limit SECONDS] [--only PART ...]    on a GPU
    session.py --rehearse [...]                                                     on a CPU

A part that fails, hangs or cannot run does not stop those that do not need it. Each gets a verdict: passed, failed, skipped (with
the reason; nothing of this project is at fault), or not reached (a part that it needs has not passed, or the time
is up). The results file has the date, the commit (with "-dirty" if files differ from it), the device, the driver, the
command and a line for each part. It is written after each part, so that an interrupted session leaves its results.

    --build-dir DIR   a build of the preset cuda; it is made, or brought up to date, unless DIR has programs but no
                      build system: those were built elsewhere. With --rehearse: one of the preset cpu (default: build/cpu)
    --commit ID       the commit, where the tree has no history of git
    --out DIR         where the results file and the logs are written (default: build/gpu/results)
    --limit SECONDS   time for all parts together, without the build (default: 600)
    --only PART       run this part and what it needs; repeatable
    --small           small shapes, whose speeds mean nothing: a trial of the script itself
    --rehearse        on a CPU, with --kernels composed in place of a GPU, and --small: every part runs

Exit code: 0 if no part failed and every part was reached; otherwise 1.
"""

import argparse
import datetime
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import session_parts
from session_parts import Failed, Skipped, TimedOut

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSED, FAILED, SKIPPED, NOT_REACHED = "passed", "failed", "skipped", "not reached"


class Session:
    """What the parts share: where programs and results are, and how commands run."""

    def __init__(self, options, work_dir):
        self.root = ROOT
        self.rehearse = options.rehearse
        self.small = options.small or options.rehearse
        # Times of small shapes mean nothing, and the machine may be busy with other tests.
        self.patience = 5 if self.small else 1
        self.build_dir = pathlib.Path(options.build_dir or ("build/cpu" if options.rehearse else "build/cuda")).resolve()
        self.out = pathlib.Path(options.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(work_dir)
        self.commit = options.commit or commit_of_tree()
        self.facts = {}       # of the device, for the head of the results
        self.deadline = None  # of the part that runs
        self.part_log = None

    def program(self, name):
        path = self.build_dir / "bin" / name
        if not path.exists():
            raise Failed(f"{path} does not exist")
        return str(path)

    def test_program(self, name):
        path = self.build_dir / "tests-bin" / name
        if not path.exists():
            raise Skipped(f"{path} does not exist: the tests were not built")
        return str(path)

    def left_s(self):
        return max(0.1, self.deadline - time.monotonic())

    def run(self, command, expected=0, environment=None):
        """Runs a command, which must end with `expected`, and returns its output."""
        code, output = self.run_any(command, environment)
        if code != expected:
            lines = [line for line in output.splitlines() if line.strip()]
            raise Failed(f"{pathlib.Path(command[0]).name} ended with {code}, not {expected}: "
                         f"{lines[-1][:200] if lines else 'no output'}")
        return output

    def run_any(self, command, environment=None):
        """Runs a command to its end within the part's time. Returns its exit code and its output, which the part's log
        keeps."""
        with open(self.part_log, "a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(map(str, command))}\n")
        try:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", cwd=self.root, env=dict(os.environ, **(environment or {})),
                                       start_new_session=True)
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from error
        try:
            output, _ = process.communicate(timeout=self.left_s())
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too, which may hold the device
            output, _ = process.communicate()
            self._log(output)
            raise TimedOut(f"{pathlib.Path(command[0]).name} did not end in time", output) from error
        self._log(output)
        return process.returncode, output

    def _log(self, text):
        with open(self.part_log, "a", encoding="utf-8") as log:
            log.write(text)


def one_line(text):
    return " ".join(str(text).split()).replace("|", "/")


def judge(part, session):
    """Runs a part; returns its verdict and what it found."""
    try:
        return PASSED, part.run(session)
    except Skipped as reason:
        return SKIPPED, str(reason)
    except Failed as reason:
        return FAILED, str(reason)
    except Exception as error:  # a fault of the script itself must not end the session
        return FAILED, f"{type(error).__name__}: {error}"


def commit_of_tree():
    def git(*arguments):
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def write_results(path, session, command, begun, rows):
    lines = [f"# {'Rehearsal on a CPU' if session.rehearse else 'GPU'}: {session.facts.get('device', 'unknown device')}", ""]
    for name, value in [("date", begun.strftime("%Y-%m-%d %H:%M UTC")), ("commit", session.commit),
                        *session.facts.items(), ("command", command)]:
        lines.append(f"- {name}: {value}")
    lines += ["", "| part | verdict | s | what it found |", "|---|---|---|---|"]
    lines += [f"| {name} | {verdict} | {seconds:.0f} | {one_line(found)} |" for name, verdict, seconds, found in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def wanted(only):
    """The parts to run, in order: all, or those of --only and what they need."""
    parts = {part.name: part for part in session_parts.PARTS}
    unknown = [name for name in only if name not in parts]
    if unknown:
        sys.exit(f"session.py: no part {unknown[0]}; the parts are {', '.join(parts)}")
    names, new = set(), set(only or parts)
    while new:
        names |= new
        new = {need for name in new for need in parts[name].needs} - names
    return [part for part in session_parts.PARTS if part.name in names]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir")
    parser.add_argument("--commit")
    parser.add_argument("--out", default="build/gpu/results")
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(arguments)
    begun = datetime.datetime.now(datetime.timezone.utc)
    command = shlex.join(["tests/gpu/run", *arguments])
    verdicts, rows = {}, []
    with tempfile.TemporaryDirectory(prefix="taopd-gpu-") as work_dir:
        session = Session(options, work_dir)
        kind = "-rehearsal" if options.rehearse else "-small" if options.small else ""
        path = session.out / f"{begun.strftime('%Y-%m-%d-%H%M')}{kind}.md"
        left_s = options.limit
        for part in wanted(options.only):
            session.part_log = session.out / (part.name.replace(" ", "_") + ".log")
            session.part_log.write_text("", encoding="utf-8")
            missing = [need for need in part.needs if verdicts.get(need) != PASSED]
            start = time.monotonic()
            if missing:
                verdict, found = NOT_REACHED, f"{missing[0]}: {verdicts.get(missing[0], NOT_REACHED)}"
            elif left_s <= 0 and not part.is_preparation:
                verdict, found = NOT_REACHED, "the time is up (--limit)"
            else:
                limit_s = part.limit_s * session.patience
                session.deadline = start + (limit_s if part.is_preparation else min(limit_s, left_s))
                verdict, found = judge(part, session)
            seconds = time.monotonic() - start
            if not part.is_preparation:
                left_s -= seconds
            verdicts[part.name] = verdict
            rows.append((part.name, verdict, seconds, found))
            print(f"{part.name}: {verdict} ({seconds:.0f} s): {one_line(found)}", flush=True)
            write_results(path, session, command, begun, rows)
    print(f"results: {path}")
    if not session.small:
        print("if they are worth keeping: copy the file to tests/bench/results/gpu and commit it")
    return 0 if all(verdict in (PASSED, SKIPPED) for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
