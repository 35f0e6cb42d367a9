"""Unmodified clients of other projects against taopd-teacher, in an environment that this test makes.

TAOPD_CLIENTS_VENV is its place. Exit code 77: the packages cannot be installed.
"""

import os
import pathlib
import subprocess
import sys
import venv

import service


def main():
    here = pathlib.Path(__file__).parent
    place = pathlib.Path(os.environ["TAOPD_CLIENTS_VENV"])
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", "-r",
                                here.parent / "requirements-clients.txt"], check=False)
    if installed.returncode != 0:
        print("skipped: the clients cannot be installed")
        return service.SKIPPED
    with service.tiny_model_dir() as model, service.teacher(model) as teacher:
        clients = [subprocess.run([python, here / f"{name}_client.py", teacher.url], check=False).returncode
                   for name in ("openai", "lm_eval")]
    return 1 if any(clients) else 0


if __name__ == "__main__":
    sys.exit(main())
