"""Unmodified clients of other projects against taopd-teacher, in an environment that this test makes.

TAOPD_CLIENTS_VENV is its place. Exit code 77: the packages cannot be installed.
"""

import os
import pathlib
import subprocess
import sys

import service
from environment import python_with


def main():
    here = pathlib.Path(__file__).parent
    python = python_with(os.environ["TAOPD_CLIENTS_VENV"], "-r", here.parent / "requirements-clients.txt")
    with service.tiny_model_dir() as model, service.teacher(model) as teacher:
        clients = [subprocess.run([python, here / f"{name}_client.py", teacher.url], check=False).returncode
                   for name in ("openai", "lm_eval")]
    return 1 if any(clients) else 0


if __name__ == "__main__":
    sys.exit(main())
