"""A server under test: requests to it, and starting taopd-teacher or vLLM with the tiny model."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))
import tiny_model
from waiting import wait_for

START_TIMEOUT_S = 1800  # vLLM takes a minute on an idle machine, and ten on a busy one
MODEL_NAME = "tiny"


class Service:
    def __init__(self, url, tolerance=0.0, grpc_port=None):
        self.url = url.rstrip("/")
        self.grpc_port = grpc_port  # of taopd-teacher
        # By how much equal requests may differ; taopd-teacher on a CPU: not at all.
        self.tolerance = tolerance

    def request(self, path, body=None, headers=None, raw=None):
        """Status and text of an answer; GET without a body."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data,
                                         headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, path, body=None):
        """The JSON of an answer that must be a success."""
        status, text = self.request(path, body)
        assert status == 200, f"{path}: {status} {text[:1000]}"
        return json.loads(text)

    def tokens(self, prompt, **fields):
        return self.ask("/tokenize", {"prompt": prompt, **fields})["tokens"]

    def events(self, path, body):
        """The JSON of the events of a stream, whose last one must be [DONE]."""
        status, text = self.request(path, {**body, "stream": True})
        assert status == 200, f"{path}: {status} {text[:1000]}"
        events = [event for event in text.split("\n\n") if event]
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]

    def is_healthy(self):
        with contextlib.suppress(OSError):
            return self.request("/health")[0] == 200
        return False

    def is_ours(self):
        return self.request("/config")[0] == 200


@contextlib.contextmanager
def running(command, environment=None):
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started and left behind, too
        process.wait()


@contextlib.contextmanager
def teacher(model_dir, extra=(), max_logprobs=20):
    """taopd-teacher with the model; TAOPD_BIN_DIR says where the program is."""
    binary = pathlib.Path(os.environ["TAOPD_BIN_DIR"]) / "taopd-teacher"
    with tempfile.TemporaryDirectory() as scratch:
        ready = pathlib.Path(scratch) / "ready.json"
        command = [str(binary), "--model", str(model_dir), "--served-model-name", MODEL_NAME, "--port", "0",
                   "--grpc-port", "0", "--ready-file", str(ready), "--num-threads", "1",
                   "--kv-cache-memory-bytes", "64MiB", "--max-logprobs", str(max_logprobs), "--log-level",
                   "warning", *extra]
        with running(command) as process:
            wait_for(ready.exists, "taopd-teacher starts", process, START_TIMEOUT_S)
            ports = json.loads(ready.read_text())
            yield Service(f"http://127.0.0.1:{ports['http_port']}", grpc_port=ports["grpc_port"])


@contextlib.contextmanager
def vllm(model_dir, extra=(), dev_mode=False):
    """vLLM with the model; TAOPD_VLLM names its program. With `dev_mode` its weights can be changed."""
    with socket.socket() as picked:
        picked.bind(("127.0.0.1", 0))
        port = picked.getsockname()[1]
    service = Service(f"http://127.0.0.1:{port}", tolerance=1e-4)
    command = ["nice", "-n", "10", os.environ["TAOPD_VLLM"], "serve", str(model_dir), "--served-model-name",
               MODEL_NAME, "--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--host",
               "127.0.0.1", "--port", str(port), "--enable-scale-out", "--enable-tokenizer-info-endpoint",
               "--max-num-seqs", "16", *extra]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                   "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_SERVER_DEV_MODE": str(int(dev_mode))}
    with running(command, environment) as process:
        wait_for(service.is_healthy, "vLLM starts", process, START_TIMEOUT_S)
        # The first log-probs compile a kernel: on a busy machine that takes longer than a client waits.
        service.ask("/v1/completions", {"model": MODEL_NAME, "prompt": [1, 2, 3], "max_tokens": 1, "prompt_logprobs": 1})
        yield service


def skip_without_vllm():
    """Exit code 77, for a skipped test, unless TAOPD_VLLM names a program."""
    if not os.access(os.environ.get("TAOPD_VLLM", ""), os.X_OK):
        print("skipped: TAOPD_VLLM names no program")
        sys.exit(77)


def given_vllm(model_dir):
    """The running server that COMPAT_VLLM_URL names; without it vLLM with the model."""
    given = os.environ.get("COMPAT_VLLM_URL")
    return contextlib.nullcontext(Service(given)) if given else vllm(model_dir)


@contextlib.contextmanager
def tiny_model_dir():
    with tempfile.TemporaryDirectory() as directory:
        tiny_model.write(directory)
        yield directory
