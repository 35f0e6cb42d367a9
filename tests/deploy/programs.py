"""The real programs, started by tests on ports of 127.0.0.1 that the kernel or the test picks."""

import contextlib
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from environment import BIN_DIR, MODEL, expect, tool
from waiting import WAIT_S, wait_for


def fetch(url, data=None):
    """(status, text) of an HTTP request; (0, reason) if nobody answers."""
    headers = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url, json.dumps(data).encode() if data else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def free_ports(count, address="127.0.0.1"):
    """Ports that nobody listens on now. All are held at once, so that they differ."""
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def free_port(address="127.0.0.1"):
    return free_ports(1, address)[0]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


class Program:
    """A running program with its log; killed when the test, or the class of tests, ends if it still runs."""

    def __init__(self, test, command, directory, name, **options):
        self.log = pathlib.Path(directory, f"{name}.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                                            **options)
        (test.addClassCleanup if isinstance(test, type) else test.addCleanup)(self.kill)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self, wait_s=WAIT_S):
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(wait_s)


def teacher_command(*flags, program=BIN_DIR / "taopd-teacher", model=MODEL):
    return [program, "--model", model, "--num-threads", "1", *flags]


class Teacher(Program):
    """A teacher on free ports, ready. It may run behind a `prefix`, such as an emulator or another root, in which the
    program, the model and the directory have the paths `program`, `model` and `inside`."""

    def __init__(self, test, directory, *flags, name="teacher", program=BIN_DIR / "taopd-teacher", model=MODEL, inside=None,
                 prefix=(), wait_s=WAIT_S, **options):
        ready = pathlib.Path(directory, f"{name}.json")
        command = teacher_command("--port", "0", "--grpc-port", "0", "--ready-file", f"{inside or directory}/{ready.name}",
                                  "--kv-cache-memory-bytes", "8388608", *flags, program=program, model=model)
        super().__init__(test, [*prefix, *command], directory, name, **options)
        wait_for(ready.exists, f"the teacher is ready ({self.log})", self.process, wait_s)
        ports = json.loads(ready.read_text())
        self.url = f"http://127.0.0.1:{ports['http_port']}"
        self.endpoint = f"grpc://127.0.0.1:{ports['grpc_port']}"


def copy_model(directory):
    """A student's directory: the example model."""
    return shutil.copytree(MODEL, pathlib.Path(directory, "student"))


def make_certificate(path, name, addresses="IP:127.0.0.1", authority=None):
    """Writes PATH.crt and PATH.key. AUTHORITY.crt and .key sign the certificate; without them it signs itself, as an authority's."""
    signed = ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
    expect(0, [tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", f"/CN={name}", "-addext", f"subjectAltName={addresses}", *(signed if authority else ()),
               "-keyout", f"{path}.key", "-out", f"{path}.crt"])


# Settings that make a run of deploy/recipes/stories.yaml take a second.
TINY = {"trainer.total_steps": 2, "data.train_batch_size": 4, "trainer.mini_batch_size": 2, "rollout.n": 2,
        "data.max_response_length": 16, "eval.num_prompts": 2, "trainer.eval_at_start": "false",
        "rollout.max_num_seqs": 16, "trainer.num_threads": 1}
# The same where a package is in /opt/taopd.
TINY_IN_A_PACKAGE = TINY | {"data.train": "[/opt/taopd/deploy/examples/stories/train.jsonl]",
                            "data.val": "[/opt/taopd/deploy/examples/stories/heldout.jsonl]"}


def settings(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
