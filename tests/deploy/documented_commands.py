"""Runs the commands that a page shows, as printed, in a directory that looks like a fresh clone.

The programs are real. What a page takes for granted is replaced by something small: each /models/NAME is one tiny
random model, each /data/NAME.jsonl a few problems, and a shim in front of taopd-trainer shortens every run to two steps
and every evaluation to two problems. Scripts that install, build or test are not run: their arguments are noted, and then
checked against their --help. The default ports are replaced by free ones.
"""

import functools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

from environment import ROOT, expect, write_script
from pages import blocks, blocks_with_names
from programs import free_ports

sys.path.insert(0, str(ROOT / "tests/compat"))
import tiny_model  # noqa: E402

TIMEOUT_S = 600
# Checked, not run: they install, build or run for minutes.
SCRIPTS = ("deploy/setup", "deploy/release", "deploy/experiment", "deploy/images/build", "deploy/tools/compare_table",
           "deploy/tools/docs_reference", "deploy/tools/docs_site", "deploy/reproduce", "deploy/wheel", "tests/run", "tests/gpu/run",
           "tests/gpu/cost_model.py", "tests/fuzz/run", "tests/bench/run", "tests/mutation/run")
TOOLS = ("cmake", "ninja", "hf")  # those of others
SHORT = ("trainer.total_steps=2", "data.train_batch_size=2", "trainer.mini_batch_size=2", "rollout.n=2",
         "rollout.max_num_seqs=4", "data.max_response_length=8", "data.truncation=left", "trainer.eval_every=1",
         "teacher.connect_timeout_s=60", "eval.n=1", "eval.num_prompts=2", "eval.max_response_length=8")

# In front of taopd-trainer: the command as printed, and settings that shorten it. A page's endpoint wins over ours, and a
# student that is its own teacher, or has none, has no endpoint.
TRAINER_SHIM = """endpoint=(--set "teacher.endpoints=[grpc://127.0.0.1:${{GRPC_PORT:-1}}]")
for word in "$@"; do
  [[ $word != teacher.kind=* ]] || endpoint=()
  if [[ -f $word ]] && grep -qE "kind: (self|none)" "$word"; then endpoint=(); fi
done
case $1 in
  sft) exec {program} "$@" --set trainer.total_steps=2 ;;
  train | data | eval) exec {program} "$1" "${{endpoint[@]}}" "${{@:2}}" {short} ;;
  *) exec {program} "$@" ;;
esac
"""
PRELUDE = """set -eu -o pipefail
CURL='import sys, urllib.request
arguments = [a for a in sys.argv[1:] if a not in ("-s", "-sf", "-H")]
url, data = next(a for a in arguments if a.startswith("http")), arguments[-1].encode() if "-d" in arguments else None
request = urllib.request.Request(url, data, {{"Content-Type": "application/json"}})
print(urllib.request.urlopen(request).read().decode())'
export QUICKSTART_IS_BUILT=1
check() {{ printf '%s\\0' $# "$@" >>{noted}; }}
{checked}
command -v curl >/dev/null || curl() {{ {python} -c "$CURL" "$@"; }}
# A comparison is many runs: only its arguments are checked.
deploy/quickstart() {{
  case " $* " in
    *" --compare "*) check deploy/quickstart "$@" ;;
    *) "$PWD/deploy/quickstart" "$@" ;;
  esac
}}
"""


@functools.cache
def help_of(command):
    """What a script prints for --help: (path, subcommand if there is one)."""
    return subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout


def flag_problems(root, words):
    """Each flag of a script must be in its --help; ctest's own pass through tests/run."""
    has_subcommand = words[0] == "tests/bench/run" and len(words) > 1 and not words[1].startswith("-")
    command = words[:2] if has_subcommand else words[:1]
    text = help_of((root / command[0], *command[1:]))
    for word in words[len(command):]:
        if word.startswith("-") and not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text):
            yield f"{word} is not in its --help"
    for flag, label in zip(words, words[1:]):
        if words[0] == "tests/run" and flag == "-L" and label not in text:
            yield f"there is no label {label}"


def tool_problems(root, words):
    """Presets, options and targets must exist in the tree."""
    lists = "\n".join(path.read_text(encoding="utf-8") for folder in ("common", "kernels", "server", "trainer", "tests")
                      for path in (root / folder).rglob("CMakeLists.txt"))
    presets = {preset["name"] for preset in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]}
    for flag, value in zip(words, words[1:]):
        if flag == "--preset" and value not in presets:
            yield f"there is no preset {value}"
    modules = "\n".join(path.read_text(encoding="utf-8") for path in (root / "common/cmake").glob("*.cmake"))
    for word in words[1:]:
        option = re.match(r"-D(TAOPD_\w+)=", word)
        if option and option[1] not in modules:
            yield f"there is no option {option[1]}"
    if words[0] == "ninja":
        for target in words[3 if words[1] == "-C" else 1:]:
            if not re.search(rf"\b(taopd_binary|taopd_test|add_executable)\({re.escape(target)}\b", lists):
                yield f"there is no target {target}"


def problems_of(root, words):
    """What is wrong with a command of a script or a tool."""
    for problem in (tool_problems if words[0] in TOOLS else flag_problems)(root, words):
        yield f"{shlex.join(words)}: {problem}"


def commands_of(noted):
    """The commands that a page's shell has noted: for each, the number of its words and the words."""
    fields = iter(noted.split("\0")[:-1])
    return [[next(fields) for _ in range(int(count))] for count in fields]


class Clone:
    """A directory with the tree's folders, the programs, and stand-ins for models and data."""

    def __init__(self, root, bin_dir, deps, path, tiny=None):
        """`tiny`: another clone, whose model and generated examples this one uses."""
        self.root, self.path = root, pathlib.Path(path)
        for entry in root.iterdir():
            if entry.name not in ("build", "runs", ".git"):
                (self.path / entry.name).symlink_to(entry)
        programs = self.path / "build/cpu/bin"
        programs.mkdir(parents=True)
        (programs / "taopd-teacher").symlink_to(bin_dir / "taopd-teacher")
        short = " ".join(f"--set {setting}" for setting in SHORT)
        shim = TRAINER_SHIM.format(program=bin_dir / "taopd-trainer", short=short)
        write_script(programs / "taopd-trainer", shim, "/bin/bash")
        (self.path / "deps").mkdir()
        self.has_test_python = (deps / "test-venv").exists()
        if self.has_test_python:
            (self.path / "deps/test-venv").symlink_to(deps / "test-venv")
        self.environment = {**os.environ, "TAOPD_DEPS": str(self.path / "deps"), "PYTHONDONTWRITEBYTECODE": "1",
                            "OMP_NUM_THREADS": "1"}
        if tiny is None:
            (self.path / "deps/examples").mkdir()
            self.make_model()
        else:
            for part in ("tiny", "deps/examples"):
                (self.path / part).symlink_to(tiny.path / part)
        rows = "".join(json.dumps({"prompt": f"{i} + {i} =", "answer": str(2 * i), "solution": f"{i} * 2"}) + "\n"
                       for i in range(4))
        self.write("data/rows.jsonl", rows)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def make_model(self):
        """Random weights of a smaller model with the tokenizer of tests/compat."""
        tiny_model.write(self.path / "tiny/tokenizer")
        config = json.loads((self.path / "tiny/tokenizer/config.json").read_text())
        config |= {"max_position_embeddings": 8448, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
                   "num_attention_heads": 1, "head_dim": 8}
        self.write("tiny/config.json", json.dumps(config))
        self.write("tiny/sft.jsonl", json.dumps({"prompt": "1 + 1 =", "response": " 2"}) + "\n")
        self.write("tiny/sft.yaml", "run: {dir: tiny/run}\nmodel: {config: tiny/config.json, tokenizer: tiny/tokenizer}\n"
                                    "data: {train: [tiny/sft.jsonl]}\ntrainer: {total_steps: 1, batch_size: 1}\n")
        expect(0, ["build/cpu/bin/taopd-trainer", "sft", "--config", "tiny/sft.yaml"], cwd=self.path, env=self.environment)

    def localize(self, text, ports):
        """The page's words with this clone's paths and ports in the place of those that the page takes for granted."""
        text = text.replace("taopd-teacher --model", "taopd-teacher --port 8000 --grpc-port 50051 --model")
        for printed, port in ports.items():
            text = re.sub(rf"\b{printed}\b", str(port), text)
        for name in set(re.findall(r"/models/([\w.-]+)", text)):
            self.link(f"models/{name}", "tiny/run/model")
        for name in set(re.findall(r"/data/([\w.-]+\.jsonl)", text)):
            self.link(f"data/{name}", "data/rows.jsonl")
        text = re.sub(r"(?<![\w.])/(models|data)/", rf"{self.path}/\1/", text)
        return text.replace("~/.cache/taopd", str(self.path / "deps"))

    def link(self, name, target):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.symlink_to(self.path / target)

    def run(self, text, files=()):
        """Runs the page's sh blocks in their order; returns (exit code, output). `files`: (name, text) of others."""
        script = "".join(blocks(text, "sh"))
        ports = dict(zip(("8000", "50051", "9000"), free_ports(3)))
        for name, block in [*files, *blocks_with_names(text)]:
            self.write(name, self.localize(block, ports))
        if "taopd-trainer train" not in script:  # models that another page has made
            for run in ("runs/mine", "runs/quickstart"):
                for part in ("model", "metrics.jsonl", "config.yaml"):
                    self.link(f"{run}/{part}", f"tiny/run/{part}")
        if not self.has_test_python:  # made by tests/run
            script = re.sub(r"^(\. .*test-venv|(PYTHONPATH=\S+ )?python ).*\n", "", script, flags=re.M)
        checked = "\n".join(f'{name}() {{ check {name} "$@"; }}' for name in SCRIPTS + TOOLS)
        noted = self.path / "noted"
        noted.touch()
        prelude = PRELUDE.format(python=sys.executable, noted=noted, checked=checked)
        process = subprocess.Popen(["bash", "-c", prelude + self.localize(script, ports)], cwd=self.path,
                                   env={**self.environment, "GRPC_PORT": str(ports["50051"])}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        # A teacher in the background keeps the pipe open: the shell's end is the page's.
        output = []
        reader = threading.Thread(target=lambda: output.append(process.stdout.read()))
        reader.start()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        reader.join()
        process.stdout.close()
        commands = commands_of(noted.read_text(encoding="utf-8"))
        problems = [problem for words in commands for problem in problems_of(self.root, words)]
        return process.returncode or len(problems), "\n".join([output[0].decode(errors="replace"), *problems])
