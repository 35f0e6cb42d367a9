"""Where the tests of deployment find the tree, the programs, and the packages of tests/requirements-deploy.txt."""

import atexit
import functools
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("TAOPD_BIN_DIR", ROOT / "build/cpu/bin")).resolve()
DEPS = pathlib.Path(os.environ.get("TAOPD_DEPS") or
                    pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "taopd")
VENV = DEPS / "deploy-venv"
MODEL = ROOT / "deploy/examples/stories260K"

sys.path += [str(path) for path in VENV.glob("lib/python3*/site-packages")]
# Scripts start the interpreter of the tests, not a wrapper that looks for one. Programs in Go end before garbage counts.
os.environ |= {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "GOGC": "400"}
# A shell starts its background jobs with SIGINT ignored, and what they start cannot undo that. Tests send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def tool(name):
    """The path of a program that deploy/setup --tests installs, or that the machine has; else the test is skipped."""
    for found in (VENV / "bin" / name, DEPS / "promtool/usr/bin" / name, shutil.which(name)):
        if found and pathlib.Path(found).exists():
            return str(found)
    raise unittest.SkipTest(f"{name} is not here: run deploy/setup --tests, or install it")


def module(name):
    """A Python module of tests/requirements-deploy.txt; without it the test is skipped."""
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        raise unittest.SkipTest(f"{error}: run deploy/setup --tests") from error


def python_with(place, *requirements):
    """The interpreter of an environment at `place`, which gets these packages. Exit code 77: they cannot be installed."""
    python = pathlib.Path(place, "bin/python")
    if not python.exists():
        venv.create(place, with_pip=True)
    done = run([python, "-m", "pip", "install", "--quiet", *requirements])
    if done.returncode != 0:
        print(f"skipped: the packages of {place} cannot be installed: {done.stderr[-500:]}")
        sys.exit(77)
    return python


def project_version():
    return re.search(r"project\(taopd VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def run(command, **options):
    """Runs a command to its end. The result has its exit code and, as texts, what it has printed."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def expect(code, command, **options):
    """The same for a command that must end with this exit code."""
    done = run(command, **options)
    if done.returncode != code:
        raise AssertionError(f"{command}: {done.returncode} instead of {code}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def load_script(path):
    """A Python script of the tree as a module."""
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(path).name, str(ROOT / path))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(script)
    return script


@functools.cache
def loaded_bin_dir():
    """BIN_DIR for tests that start taopd-teacher and taopd-trainer often. Its programs are stand-ins for two that are loaded
    once (tests/support/stand_in.cc). What is told by a process, by its limits or by the file of a program needs BIN_DIR."""
    helpers = BIN_DIR.parent / "tests-bin"
    if not (helpers / "stand_in").exists():
        return BIN_DIR
    directory = pathlib.Path(tempfile.mkdtemp(prefix="taopd-bin-"))
    atexit.register(shutil.rmtree, directory)
    for program in BIN_DIR.iterdir():
        if program.name not in ("taopd-teacher", "taopd-trainer"):
            (directory / program.name).symlink_to(program)
            continue
        shutil.copy(helpers / "stand_in", directory / program.name)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory / program.name}.socket")
            listener.listen(100)
            environment = {**os.environ, "LD_PRELOAD": helpers / "libloaded_program.so", "GOMP_SPINCOUNT": "1000",
                           "OMP_NUM_THREADS": "1", "TAOPD_START_LISTENER": str(listener.fileno())}
            loaded = subprocess.Popen([program], stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
        atexit.register(loaded.communicate)  # the end of its input is its end
    return directory


@functools.cache  # a program loads LibTorch first
def output_of(program, *arguments):
    """What one of the project's programs prints."""
    return expect(0, [BIN_DIR / program, *arguments]).stdout


def write_script(path, body, interpreter="/bin/sh"):
    """Writes an executable script, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{body}\n", encoding="ascii")
    path.chmod(0o755)


def make_clone(directory):
    """Makes `directory` look like a clone with built programs."""
    clone = pathlib.Path(directory)
    (clone / "build/cpu").mkdir(parents=True)
    (clone / "build/cpu/bin").symlink_to(BIN_DIR)
    for entry in ROOT.iterdir():
        if entry.name not in ("build", "runs", ".git", "deploy"):
            (clone / entry.name).symlink_to(entry)
    subprocess.run(["cp", "-r", ROOT / "deploy", clone / "deploy"], check=True)  # scripts find the tree from where they are
    return clone


def temporary_path(test, prefix="tmp"):
    """A directory that is removed at the end of the test or, if `test` is a class, of its tests."""
    directory = tempfile.TemporaryDirectory(prefix=prefix)
    (test.addClassCleanup if isinstance(test, type) else test.addCleanup)(directory.cleanup)
    return pathlib.Path(directory.name)
