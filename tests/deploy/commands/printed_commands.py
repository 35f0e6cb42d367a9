"""The commands of the pages for operators that no test can run, because they need a cluster, root or another machine: those in
blocks without a language, and those of kubectl and systemctl in a sentence. Their programs, flags, files and objects must exist.

A block is a list of commands, a part of a systemd unit, or YAML; everything in it must be known here, or it is a finding."""

import functools
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import documented_commands
import kubectl_commands
from environment import BIN_DIR, ROOT, module, project_version, run, tool
from pages import blocks, prose

UNITS = ROOT / "deploy/systemd"
PROGRAMS = ("taopd-teacher", "taopd-trainer")
# These run where the page is read; their flags are single letters, or in their --help.
PLAIN = ("sha256sum", "tar", "mkdir", "mv", "cp", "ln", "head", "base64")


def commands(text):
    """The words of each command of a block. A command in $(...) stands by itself, and the outer one gets a pod's name for it."""
    text = re.sub(r"\\\n\s*", "", text)
    for line in text.splitlines():
        line = re.sub(r"\s+#.*$", "", line)
        inner = re.findall(r'"\$\((.*)\)"', line)
        for each in (*inner, *re.sub(r'"\$\(.*\)"', "pod/POD", line).split(" | ")):
            words = shlex.split(re.sub(r"\s+>\s*\S+$|\s+&$", "", each))
            if words:
                yield words[1:] if words[0] == "sudo" else words


def inline_commands(text):
    """Commands in sentences and tables that have more than a verb."""
    for code in re.findall(r"`((?:kubectl|systemctl) [^`]*)`", prose(text)):
        yield shlex.split(re.sub(r"\s*\n\s*", " ", code))


@functools.cache
def output_of(*words):
    return run(words).stdout


def unknown_flags(words, text):
    """Flags that a help text does not have. Single letters may be joined."""
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            names = [word.partition("=")[0]]
        else:
            names = [f"-{letter}" for letter in word[1:]] if word.startswith("-") and len(word) > 1 else []
        for name in names:
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
                yield f"{words[0]} has no flag {name}"


def unit_of(word):
    """The unit's file; None if there is none."""
    name = re.sub(r"@.*", "@", word.removesuffix(".service"))
    path = UNITS / f"{name}.service"
    return path if path.exists() else None


def systemd_findings(words):
    text = output_of(words[0], "--help")
    yield from unknown_flags(words, text)
    others = [word for word in words[1:] if not word.startswith("-")]
    if words[0] == "systemctl":
        verb = others.pop(0)
        if not re.search(rf"^\s+{re.escape(verb)}\b", text, re.M):
            yield f"systemctl has no command {verb}"
    for word in others:
        if unit_of(word) is None:
            yield f"there is no unit {word}"


def program_findings(program, arguments):
    """Flags of teacher and trainer, also behind `launch ... --`."""
    if program == "taopd-teacher":
        yield from unknown_flags([program, *arguments], output_of(BIN_DIR / program, "--help"))
        return
    while arguments:
        words, arguments = arguments, []
        if "--" in words:
            arguments = words[words.index("--") + 1:]
        command = [words[0]] if not words[0].startswith("-") else []
        if command == ["quickstart"]:  # of the wheel
            yield from unknown_flags([program, *words], output_of(ROOT / "deploy/quickstart", "--help"))
        elif command and not re.search(rf"^  {re.escape(command[0])}  ", output_of(BIN_DIR / program, "--help"), re.M):
            yield f"{program} has no command {command[0]}"
        else:
            yield from unknown_flags([program, *words], output_of(BIN_DIR / program, *command, "--help"))


def container_findings(words):
    """podman takes docker's flags, whose program may stand in for it. The words after an image are its program's."""
    program = next((name for name in ("podman", "docker") if is_there(name)), None)
    text = output_of(tool(program or "podman"), words[1], "--help")
    image = next((i for i, word in enumerate(words) if re.match(r"taopd-\w+:", word)), len(words))
    yield from unknown_flags(words[:image], text)
    if image < len(words):
        yield from program_findings(words[image].partition(":")[0], words[image + 1:])


def is_there(name):
    try:
        return bool(tool(name))
    except unittest.SkipTest:
        return False


def skopeo_findings(words):
    text = output_of(tool("skopeo"), words[1], "--help")
    yield from unknown_flags(words, text)
    for word in words[-2:]:  # from, to
        transport = word.partition(":")[0]
        if not re.search(rf"[ ,]{re.escape(transport)}[,\n]", text):
            yield f"skopeo knows no {transport}:"


def script_findings(words):
    """What documented_commands checks of scripts and tools of the tree."""
    try:
        yield from documented_commands.problems_of(ROOT, words)
    except (OSError, subprocess.CalledProcessError) as error:
        yield f"{words[0]}: {error}"


def python_findings(words):
    script = ROOT / words[1]
    if not script.exists():
        yield f"there is no {words[1]}"
        return
    known = re.findall(r'add_argument\("(--[\w-]+)"', script.read_text(encoding="utf-8"))
    yield from (f"{words[1]} has no flag {word}" for word in words[2:] if word.startswith("-") and word not in known)


def path_findings(words):
    """Paths of the installed package are the tree's."""
    for word in words:
        found = re.fullmatch(r"/opt/taopd/((?:bin|deploy)/.*)", word)
        if found and not list(ROOT.glob(found[1])) and not (BIN_DIR / found[1].removeprefix("bin/")).exists():
            yield f"there is no {word}"


def findings(words):
    """What is wrong with one command."""
    name = words[0]
    yield from path_findings(words)
    if name == "kubectl":
        yield from kubectl_commands.findings(words)
    elif name in ("systemctl", "journalctl"):
        yield from systemd_findings(words)
    elif name in PLAIN:
        yield from unknown_flags(words, output_of(name, "--help"))
    elif name in ("apt", "apt-get"):
        if not re.search(rf"^ +{re.escape(words[1])} ", output_of("apt-get", "--help"), re.M):
            yield f"apt has no command {words[1]}"
    elif pathlib.Path(name).name in PROGRAMS:
        yield from program_findings(pathlib.Path(name).name, words[1:])
    elif name == "pip":
        for word in words[2:]:
            if "/" in word and not (ROOT / word / "pyproject.toml").exists():
                yield f"there is no package {word}"
    elif name == "python":
        yield from python_findings(words)
    elif name == "podman":
        yield from container_findings(words)
    elif name == "skopeo":
        yield from skopeo_findings(words)
    elif name == "cmake" or (ROOT / name).is_file():
        yield from script_findings(words)
    else:
        yield f"nothing is known of {name}"


def unit_findings(text, before):
    """A part of a unit, for the one that the text before it says to edit."""
    unit = unit_of(re.findall(r"systemctl edit ([\w@-]+)", before)[-1])
    whole = (unit.read_text(encoding="ascii") + text).replace("/opt/taopd/bin", str(BIN_DIR))
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, unit.name).write_text(whole, encoding="ascii")
        done = run([tool("systemd-analyze"), "verify", "--man=no", pathlib.Path(directory, unit.name)])
    yield from (line for line in (done.stdout + done.stderr).splitlines() if unit.stem in line)
    for command in re.findall(r"^ExecStart=(\S.*)$", re.sub(r"\\\n\s*", "", text), re.M):
        yield from findings(shlex.split(command))


def yaml_findings(text):
    value = module("yaml").safe_load(text)
    if "scrape_configs" not in value:
        return
    with tempfile.TemporaryDirectory() as directory:
        for name in value["rule_files"]:
            pathlib.Path(directory, name).write_text("groups: []\n", encoding="ascii")
        pathlib.Path(directory, "prometheus.yml").write_text(text, encoding="ascii")
        done = run([tool("promtool"), "check", "config", "prometheus.yml"], cwd=directory)
    if done.returncode != 0:
        yield done.stdout + done.stderr


def page_findings(text):
    """Everything that is wrong with the commands of a page, each with its words."""
    for block in blocks(text, ""):
        if block.startswith("["):
            yield from unit_findings(block, text[:text.index(block)])
        elif re.match(r"\w+: *(\S+|$)", block):
            yield from yaml_findings(block)
        else:
            for words in commands(block):
                yield from (f"{shlex.join(words)}: {each}" for each in findings(words))
    for words in inline_commands(text):
        if len(words) > 2 or words[0] == "systemctl":
            yield from (f"{shlex.join(words)}: {each}" for each in findings(words))
    for name, version in re.findall(r"(taopd[-_](?:teacher-|trainer-)?)(\d+\.\d+\.\d+)", text):
        if version != project_version():
            yield f"{name}{version} is of another version"
