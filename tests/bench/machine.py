"""The parts that the benchmarks share: their options, the installed peers, the processor, and the load by other processes."""

import argparse
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = ROOT / "build/cpu/bin"
QWEN3 = ROOT / "tests/bench/qwen3_0.6b.json"  # the shape of Qwen3-0.6B
PLAN_TOLERANCE = 0.10  # of a memory plan, as a share of the peak


def parser_of(name, description):
    return argparse.ArgumentParser(prog=f"tests/bench/run {name}", description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def dependencies():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("TAOPD_DEPS") or os.path.join(cache, "taopd"))


def add_python(parser, packages):
    oracle = os.environ.get("TAOPD_ORACLE_PYTHON") or str(dependencies() / "oracle-venv/bin/python")
    parser.add_argument("--python", default=oracle, help=f"Python with {packages} (default: %(default)s)")


def check_program(path, remedy):
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} does not exist: {remedy}")


def last_json(command, environment=None, limit_s=None):
    """Runs a program and returns the JSON object in its last line; {"failed": why} if there is none."""
    try:
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True,
                              check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped after {limit_s:.0f} s (--limit)", "stopped_after_s": limit_s}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    reason = (done.stderr or done.stdout).strip().splitlines()
    return {"failed": reason[-1][:200] if reason else f"ended with {done.returncode}"}


def must_run(command, environment=None):
    """The same for a program that must succeed."""
    result = last_json(command, environment)
    if "failed" in result:
        sys.exit(f"{' '.join(map(str, command))}: {result['failed']}")
    return result


def output_of(command, **options):
    """Runs a program that must succeed, and returns its standard output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def make_model(engine_bench, config, model_dir):
    """Writes random bfloat16 weights of a configuration, a file or its values, unless they are there."""
    if (model_dir / "config.json").exists():
        return
    with tempfile.TemporaryDirectory() as directory:
        if isinstance(config, dict):
            path = pathlib.Path(directory, "config.json")
            path.write_text(json.dumps(config), encoding="utf-8")
            config = path
        output_of([engine_bench, "make", config, model_dir])


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          check=False).stdout.strip()


class Teacher:
    """A running taopd-teacher, on ports of its own choice, with its log in `work`."""

    def __init__(self, program, model, work, *flags):
        self.log_path, ready = work / "teacher.log", work / "teacher.ready"
        ready.unlink(missing_ok=True)  # left by an earlier round
        command = [program, "--model", model, "--port", "0", "--grpc-port", "0", "--ready-file", ready, *flags]
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
        while not (ready.exists() and ready.stat().st_size):
            if self.process.poll() is not None:
                sys.exit(self.log_path.read_text())
            time.sleep(0.05)
        self.ports = json.loads(ready.read_text())

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Load:
    """How many cores others take while the children of this process run."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy_s = (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), busy_s - usage.ru_utime - usage.ru_stime

    def others(self):
        elapsed_s, busy_s = (b - a for a, b in zip(self.begin, self.now()))
        return max(0.0, busy_s / elapsed_s)


def add_plan_options(parser):
    parser.add_argument("--only", help="names of configurations, separated by semicolons")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lines", action="store_true", help="also print the plans")


def compare_plans(options, cases, measure):
    """Prints a table of plans and peaks, which measure(case) returns with the plan's lines. With --check the program ends
    with 1 if a plan is off by more than PLAN_TOLERANCE."""
    print("| configuration | planned, MiB | peak, MiB | planned / peak |\n|---|---|---|---|")
    worst = 0.0
    for name, case in cases.items():
        if options.only and name not in options.only.split(";"):
            continue
        planned, peak, lines = measure(case)
        worst = max(worst, abs(planned / peak - 1))
        print(f"| {name} | {planned / 2**20:.0f} | {peak / 2**20:.0f} | {planned / peak:.3f} |", flush=True)
        if options.lines:
            print(lines, flush=True)
    if options.check and worst > PLAN_TOLERANCE:
        sys.exit(f"a plan is {worst:.1%} off, more than {PLAN_TOLERANCE:.0%}")


def processor():
    """The processor's name, its cores, and those of its instruction sets that matter here."""
    lines = [line.partition(":") for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    flags = facts.get("flags", "").split()
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{facts.get('model name', platform.processor())}, {os.cpu_count()} cores, {' '.join(wanted)}"
