"""The environment of the trackers' own packages, TAOPD_TRACKERS_VENV, which the tests here make."""

import os
import pathlib
import subprocess
import sys
import venv

PLACE = pathlib.Path(os.environ["TAOPD_TRACKERS_VENV"])
PYTHON = PLACE / "bin" / "python"
REQUIREMENTS = pathlib.Path(__file__).resolve().parents[2] / "requirements-trackers.txt"
SKIPPED = 77
WAIT_S = 120


def install():
    """Installs the packages. Exit code 77: they cannot be installed."""
    if not PYTHON.exists():
        venv.create(PLACE, with_pip=True)
    if subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=False).returncode != 0:
        print("skipped: the trackers cannot be installed")
        sys.exit(SKIPPED)
