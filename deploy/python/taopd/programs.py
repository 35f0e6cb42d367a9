"""Starts the programs that the Linux wheel has beside this file. They take LibTorch from the installed torch.

`taopd-trainer quickstart` is deploy/quickstart with these programs; the recipes and examples are in the wheel."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
EXIT_UNUSABLE = 69


def torch_required() -> str:
    """Returns the version of torch that the programs were built with; C++ promises nothing between versions."""
    for requirement in importlib.metadata.requires("taopd") or ():
        if match := re.fullmatch(r"torch==([\d.]+)", requirement):
            return match[1]
    raise LookupError("this package of taopd has the client only; the wheel of deploy/wheel has the programs")


def prepare(program: str, required: str, installed: str | None, torch_dir: pathlib.Path | None) -> dict[str, str]:
    """Returns the program's environment. Raises LookupError, with the remedy, if torch is
    missing or another version."""
    if installed is None or torch_dir is None:
        raise LookupError(f"{program} needs torch {required}, which is not installed: pip install torch=={required}")
    if installed.partition("+")[0] != required:
        raise LookupError(f"{program} needs torch {required}, and torch {installed} is installed: "
                          f"pip install torch=={required}")
    environment = dict(os.environ)
    if torch_dir != HERE.parent / "torch":  # the programs look beside this package first
        found = [str(torch_dir / "lib"), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, found))
    return environment


def command_of(program: str, arguments: list[str], environment: dict[str, str]) -> list[str]:
    """Returns the command line. May change `environment`."""
    if program != "taopd-trainer" or arguments[:1] != ["quickstart"]:
        return [str(HERE / "bin" / program), *arguments]
    bash = shutil.which("bash")
    if bash is None:
        raise LookupError("taopd-trainer quickstart is a script for bash, which is not installed")
    # The script calls python3, which must be this one: another may be too old.
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return [bash, str(HERE / "deploy/quickstart"), *arguments[1:]]


def run(program: str) -> None:
    try:
        spec = importlib.util.find_spec("torch")
        installed = importlib.metadata.version("torch") if spec else None
        torch_dir = pathlib.Path(spec.origin).resolve().parent if spec and spec.origin else None
        environment = prepare(program, torch_required(), installed, torch_dir)
        command = command_of(program, sys.argv[1:], environment)
    except LookupError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(EXIT_UNUSABLE)
    os.execve(command[0], command, environment)


def teacher() -> None:
    run("taopd-teacher")


def trainer() -> None:
    run("taopd-trainer")
