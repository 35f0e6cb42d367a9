"""The parts of tests/gpu/session.py. Each is a function that returns what it found in one line, or raises Failed or
Skipped. All of them run on a CPU, too (--rehearse), with the compositions of LibTorch operations. With session.small they
use small shapes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import typing
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import machine  # noqa: E402

# Losses on the device against those of the CPU. They differ by roundings until a sampled token falls on the other side
# of one, which changes one of the 24 rollouts of a step.
LOSS_TOLERANCE = 0.02
NUM_STEPS = 4
# The kernels that the check at the start of a training judges, one line of the log for each.
CHECKED_KERNELS = ("norms", "rotation", "SiLU gates", "paged attention", "prefill attention", "student head", "scoring head",
                   "sampling", "AdamW")
# compute-sanitizer's tools, and the tests that would take too long with each.
SLOW_TESTS = "*MatchesTheCpuAtAllSizes"
SLOWER_TESTS = (f"{SLOW_TESTS}:*ReferenceMoves*:*ForEveryObjective:*CallsRepeatBitForBit:*LargeVocabularies*:*WindowsHide*:"
                "*BitsDoNotDepend*")
CHECKS = {"memcheck": SLOW_TESTS, "racecheck": SLOWER_TESTS, "initcheck": SLOWER_TESTS}


class Failed(Exception):
    """Something of this project is wrong."""


class TimedOut(Failed):
    """A command that was ended after its time. `output` is what it had printed."""

    def __init__(self, text, output):
        super().__init__(text)
        self.output = output


class Skipped(Exception):
    """The part has no sense here, such as two ranks on one GPU."""


@dataclasses.dataclass
class Part:
    name: str
    run: typing.Callable
    limit_s: float
    needs: tuple = ()
    is_preparation: bool = False  # does not count towards --limit


# ---- The machine and the programs ----

def device(session):
    if session.rehearse:
        session.facts.update({"device": machine.processor(), "driver": "none", "gpus": 0})
        return session.facts["device"]
    fields = "name,driver_version,compute_cap,memory.total"
    lines = session.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).strip().splitlines()
    name, driver, capability, memory = (field.strip() for field in lines[0].split(","))
    session.facts.update({"device": name, "driver": driver, "compute capability": capability, "memory": memory,
                      "gpus": len(lines)})
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    release = re.search(r"release ([\d.]+)", session.run([nvcc, "--version"])) if pathlib.Path(nvcc).exists() else None
    session.facts["nvcc"] = release.group(1) if release else "none"
    return f"{name}, compute capability {capability}, {memory}, driver {driver}"


def architecture(capability):
    """CMAKE_CUDA_ARCHITECTURES for a device: Hopper's kernels may use what only sm_90a has."""
    major_minor = capability.replace(".", "")
    return "90a-real" if major_minor == "90" else f"{major_minor}-real"


def build(session):
    programs = [session.build_dir / "bin" / name for name in ("taopd-teacher", "taopd-trainer")]
    is_built = all(program.exists() for program in programs)
    if session.rehearse:
        if not is_built:
            raise Failed(f"{programs[0]} does not exist: build the preset cpu first")
        return f"{session.build_dir} was built before"
    if is_built and not (session.build_dir / "CMakeCache.txt").exists():
        return f"the programs of {session.build_dir}, built elsewhere"
    if is_built:
        session.run(["cmake", "--build", session.build_dir])  # it may be of another commit than this
        return f"{session.build_dir} is up to date"
    if int(session.facts["nvcc"].split(".")[0].replace("none", "0")) < 13:
        raise Failed(f"nvcc is {session.facts['nvcc']}, but the kernels need 13")
    arch = architecture(session.facts["compute capability"])
    session.run(["cmake", "-S", session.root, "-B", session.build_dir, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTAOPD_CUDA=ON",
             f"-DCMAKE_CUDA_ARCHITECTURES={arch}"])
    session.run(["cmake", "--build", session.build_dir])
    return f"built for {arch}"


# ---- The kernels by themselves ----

def kernel_tests(session):
    tests = {"cuda_kernels_test": "CudaSampleRowsTest*:*CudaLayersTest*"} if session.rehearse else {
        name: "*" for name in ("gpu_kernels_test", "gpu_attention_test", "gpu_heads_test", "gpu_engine_test")}
    found, faults = [], []
    for name, chosen in tests.items():
        try:
            output = session.run([session.test_program(name), f"--gtest_filter={chosen}"],
                             environment={"TAOPD_SOURCE_DIR": str(session.root)})
            passed = re.search(r"\[  PASSED  \] (\d+) test", output)
            if not passed or passed.group(1) == "0":
                raise Failed(f"{name}: no test ran")
            found.append(f"{name} {passed.group(1)} passed")
        except Failed as fault:  # the other programs may still tell something
            faults.append(str(fault))
    if faults:
        raise Failed("; ".join(faults + found))
    return ", ".join(found)


def sanitizer(check):
    """The part that runs the kernels' tests under a tool of compute-sanitizer."""
    def run(session):
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            raise Skipped("compute-sanitizer is not in PATH")
        program = session.test_program("cuda_kernels_test" if session.rehearse else "gpu_kernels_test")
        chosen = "*SampleRows*" if session.rehearse else f"-{CHECKS[check]}"
        try:
            output = session.run([tool, "--tool", check, "--error-exitcode", "9", program, f"--gtest_filter={chosen}"],
                             environment={"TAOPD_SOURCE_DIR": str(session.root)})
            rest = ""
        except TimedOut as error:
            output, rest = error.output, "; no time was left for the others"
            if re.search("^========= +(?!COMPUTE-SANITIZER)", output, re.MULTILINE):
                raise
        num = output.count("[       OK ]")
        if num == 0 and rest:
            raise Failed("no test ended in time")
        return f"found nothing in {num} tests{rest}"
    return run


def benchmark(part):
    """The part that runs a benchmark of kernels and returns its last line."""
    def run(session):
        name = f"gpu_{part}_bench"
        if session.rehearse:
            raise Skipped(f"{name} needs a GPU")
        bench = session.build_dir / "bin" / name
        if not bench.exists():
            raise Skipped(f"{bench} does not exist: the benchmarks were not built")
        return f"{session.run([bench]).strip().splitlines()[-1]} ({part}.log)"
    return run


# ---- Training ----

def prepare(session):
    """The quickstart's data, its teacher and its student, which have learned a little."""
    data = session.work / "data"
    session.run([sys.executable, "deploy/examples/addition/generate.py", data, "--train", 48, "--val", 8, "--teacher-sft", 512,
             "--student-sft", 512])
    for name in ("teacher", "student"):
        session.run([session.program("taopd-trainer"), "sft", "--config", f"deploy/recipes/addition/{name}_sft.yaml",
                 *settings({"run.dir": session.work / name, "model.tokenizer": data / "tokenizer",
                            "data.train": f"[{data / f'{name}_sft.jsonl'}]", "trainer.total_steps": 6,
                            "trainer.num_threads": num_threads(session), "optimizer.warmup_steps": 0, "trainer.device": "cpu"})])
    return "the quickstart's data and two small models"


def num_threads(session):
    """0, which means one per core, or one for small shapes, which threads only slow down."""
    return 1 if session.small else 0


def settings(values):
    return [argument for key, value in values.items() for argument in ("--set", f"{key}={value}")]


@contextlib.contextmanager
def serves(session, command, is_ready):
    """Runs a server until the block ends; enters the block when is_ready() is true."""
    with open(session.part_log, "a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        name = pathlib.Path(command[0]).name
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not is_ready():
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode} at its start")
                if session.left_s() <= 0.1:
                    raise Failed(f"{name} was not ready in time")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def teacher(session, model, device_flags, cache, more=()):
    """A teacher on 127.0.0.1; gives its ports."""
    ready = session.work / "ready.json"
    ready.unlink(missing_ok=True)
    kind, kernels = device_flags
    command = [session.program("taopd-teacher"), "--model", str(model), "--port", "0", "--grpc-port", "0", "--ready-file",
               str(ready), "--device", kind, "--kernels", kernels, "--kv-cache-memory-bytes", cache, *more]
    with serves(session, command, ready.exists):
        yield json.loads(ready.read_text(encoding="utf-8"))


def metrics_rows(run, key):
    """The rows of a run's metrics that have this key."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if key in row]


def train(session, name, device_flags, values, launcher=(), steps=NUM_STEPS):
    """Trains the student with the teacher on the same kind of device. Returns losses and log."""
    data, run = session.work / "data", session.work / name
    kind, kernels = device_flags
    with teacher(session, session.work / "teacher/model", device_flags, "16MiB") as ports:
        log = session.run([session.program("taopd-trainer"), *launcher, "train", "--config", "deploy/recipes/addition/train.yaml",
                       *settings({"run.dir": run, "student.model": session.work / "student/model", "data.train": f"[{data / 'train.jsonl'}]",
                                  "data.val": f"[{data / 'val.jsonl'}]", "data.train_batch_size": 6,
                                  "trainer.mini_batch_size": 3, "trainer.total_steps": steps, "trainer.eval_every": steps,
                                  "trainer.save_every": steps, "eval.num_prompts": 8, "optimizer.warmup_steps": 0,
                                  "trainer.num_threads": num_threads(session), "trainer.device": kind, "trainer.kernels": kernels,
                                  "teacher.endpoints": f"[grpc://127.0.0.1:{ports['grpc_port']}]", **values})])
    losses = [row["loss/mean"] for row in metrics_rows(run, "loss/mean")]
    if len(losses) != steps:
        raise Failed(f"{len(losses)} of {steps} steps have a loss")
    return losses, log


def on_device(session, kernels="auto"):
    return ("cpu", "composed") if session.rehearse else ("cuda", kernels)


def compare_losses(losses, expected, where):
    """Returns in words how far losses are from others; `where` says whose those are."""
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
    if not worst <= LOSS_TOLERANCE:
        raise Failed(f"losses {losses} against {expected} {where}")
    return f"losses within {worst:.1e} of"


def losses(session):
    expected, _ = train(session, "cpu", ("cpu", "custom"), {})
    found, log = train(session, "device", on_device(session), {})
    session.losses = found
    trusted = re.findall(rf"(?m)^\S+ [IW] ((?:{'|'.join(CHECKED_KERNELS)}): .*)$", log)
    (session.out / "self_check.txt").write_text("\n".join(trusted) + "\n", encoding="utf-8")
    return f"{compare_losses(found, expected, 'on the CPU')} the CPU's, {LOSS_TOLERANCE} allowed"


def self_check(session):
    """Which kernels the programs trust here: the lines that the training of `losses` has logged."""
    if session.rehearse:
        session.run([session.test_program("self_check_test"), "--gtest_filter=SelfCheck.TrustsTheKernels"])
        return "on the emulated run-time, every kernel is trusted"
    lines = (session.out / "self_check.txt").read_text(encoding="utf-8").strip().splitlines()
    if len(lines) < len(CHECKED_KERNELS):
        raise Failed(f"the log has {len(lines)} of {len(CHECKED_KERNELS)} lines")
    left_out = [line for line in lines if ": custom" not in line or ": custom, not checked" in line]
    return "; ".join(left_out) if left_out else "every kernel is trusted: " + "; ".join(lines)


def composed(session):
    expected, _ = train(session, "cpu-composed", ("cpu", "composed"), {})
    found, _ = train(session, "device-composed", on_device(session, "composed"), {})
    return f"{compare_losses(found, expected, 'on the CPU')} the CPU's with the same compositions"


def offload(session):
    if session.rehearse:
        output = session.run([session.program("taopd-trainer"), "train", "--config", "deploy/recipes/addition/train.yaml",
                          *settings({"run.dir": session.work / "offload", "student.model": session.work / "student/model",
                                     "data.train": f"[{session.work / 'data/train.jsonl'}]", "trainer.device": "cpu",
                                     "data.val": f"[{session.work / 'data/val.jsonl'}]", "optimizer.offload": "true",
                                     "teacher.endpoints": "[grpc://127.0.0.1:1]"})], expected=64)
        if "optimizer.offload" not in output:
            raise Failed("the refusal does not name optimizer.offload")
        return "refused on a CPU by name"
    found, _ = train(session, "offload", on_device(session), {"optimizer.offload": "true"})
    return f"{compare_losses(found, session.losses, 'without')} those without"


def two_ranks(session):
    if not session.rehearse and session.facts["gpus"] < 2:
        raise Skipped("there is one GPU")
    found, _ = train(session, "ranks", on_device(session), {}, launcher=["launch", "--nproc", "2", "--"])
    return f"{compare_losses(found, session.losses, 'of one rank')} one rank's"


# ---- Speed, at Qwen3-0.6B's shape ----

def shape(session):
    """A model of random weights of Qwen3-0.6B's shape; of two thin layers if the session is small."""
    config = json.loads((session.root / "tests/bench/qwen3_0.6b.json").read_text(encoding="utf-8"))
    if session.small:
        config.update({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2})
    config["max_position_embeddings"] = 4096
    path, pairs = session.work / "config.json", session.work / "pairs.jsonl"
    path.write_text(json.dumps(config), encoding="utf-8")
    length = 64 if session.small else 1024
    row = {"prompt_ids": [5] * 8, "response_ids": [3 + i % 500 for i in range(length)]}
    pairs.write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    kind, kernels = on_device(session)
    run, overrides = session.work / "shape", session.work / "shape.yaml"
    overrides.write_text(f"run: {{dir: {run}}}\n", encoding="utf-8")
    session.run([session.program("taopd-trainer"), "sft", "--config", overrides,
             *settings({"model.config": path, "model.dtype": "bfloat16", "data.train": f"[{pairs}]", "trainer.total_steps": 3,
                        "trainer.batch_size": 8, "trainer.num_threads": num_threads(session), "trainer.device": kind,
                        "trainer.kernels": kernels})])
    rates = [row["time/tokens_per_s"] for row in metrics_rows(run, "time/tokens_per_s")]
    if not rates:
        raise Failed("no step has time/tokens_per_s")
    session.shape_model = run / "model"
    return f"steps of {8 * length} tokens (sft, bfloat16): {max(rates):.0f} tokens/s"


def ask(session, port, body):
    """One completion over HTTP; returns the seconds that it took."""
    body = {"model": str(session.shape_model), **body}  # vLLM wants the name
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=session.left_s()) as answer:
        answer.read()
    return time.monotonic() - start


def speeds(session, port):
    length, tokens = (128, 8) if session.small else (2048, 128)
    prompt = [3 + i % 500 for i in range(length)]
    ask(session, port, {"prompt": prompt[:9], "max_tokens": 4})
    found = {}
    # A salt keeps the prefix cache out of the second request.
    seconds = ask(session, port, {"prompt": prompt, "max_tokens": 1, "cache_salt": "prefill"})
    found["prefill"] = f"{length / seconds:.0f} tokens/s"
    seconds = ask(session, port, {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 20, "cache_salt": "score"})
    found["score"] = f"{length / seconds:.0f} tokens/s"
    for n in (1, 16, 64):
        seconds = ask(session, port, {"prompt": prompt[:16], "n": n, "max_tokens": tokens, "ignore_eos": True, "temperature": 1,
                                  "seed": 1})
        found[f"decode {n}"] = f"{n * tokens / seconds:.0f} tokens/s"
    return ", ".join(f"{name} {value}" for name, value in found.items())


def shape_teacher(session, more=()):
    return teacher(session, session.shape_model, on_device(session), "64MiB" if session.small else "4GiB", more)


def serving(session, more=()):
    """The speeds of the teacher with the model of `shape`."""
    with shape_teacher(session, more) as ports:
        return speeds(session, ports["http_port"])


def graphs(session):
    if session.rehearse:
        output = session.run([session.program("taopd-teacher"), "--model", session.shape_model, "--device", "cpu", "--kernels", "composed",
                          "--cuda-graphs", "true"], expected=64)
        if "cuda_graphs" not in output:
            raise Failed("the refusal does not name cuda_graphs")
        return "refused without kernels by name"
    return serving(session, ["--cuda-graphs", "true"])


def distill(session):
    """Whole steps of distillation with the model of `shape` as student and as teacher, on the same device."""
    prompts, length, tokens = (2, 16, 8) if session.small else (64, 64, 512)
    kind, kernels = on_device(session)
    path, run, overrides = session.work / "prompts.jsonl", session.work / "distill", session.work / "distill.yaml"
    rows = ({"prompt_ids": [(7919 * (length * i + t) + 11) % 500 for t in range(length)]} for i in range(4 * prompts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    overrides.write_text(f"run: {{dir: {run}}}\n", encoding="utf-8")
    with shape_teacher(session) as ports:
        session.run([session.program("taopd-trainer"), "train", "--config", overrides,
                 *settings({"student.model": session.shape_model, "student.dtype": "bfloat16", "data.train": f"[{path}]",
                            "data.train_batch_size": prompts, "data.max_prompt_length": length,
                            "data.max_response_length": tokens, "rollout.n": 4, "rollout.kv_cache_gb": 0.1 if session.small else 20,
                            "teacher.top_k": 16, "trainer.mini_batch_size": prompts, "trainer.total_steps": 2,
                            "trainer.eval_every": 0, "trainer.save_every": 0, "trainer.num_threads": num_threads(session),
                            "trainer.device": kind, "trainer.kernels": kernels,
                            "teacher.endpoints": f"[grpc://127.0.0.1:{ports['grpc_port']}]"})])
    last = metrics_rows(run, "time/step_s")[-1]
    parts = {"rollouts": "time/rollout_wait_s", "teacher": "time/teacher_wait_s", "training": "time/train_s"}
    return (f"a step of {4 * prompts} responses, {last['rollout/tokens']:.0f} tokens: {last['time/step_s']:.2f} s ("
            + ", ".join(f"{name} {last[key]:.2f}" for name, key in parts.items()) + ")")


# ---- Other programs ----

def vllm(session):
    """The speeds of `serving` with vLLM, which answers the same requests."""
    program = shutil.which("vllm")
    if program is None:
        raise Skipped("vllm is not in PATH")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]

    def is_ready():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return True
        except OSError:
            return False

    with serves(session, [program, "serve", str(session.shape_model), "--host", "127.0.0.1", "--port", str(port), "--tokenizer",
                      str(session.work / "data/tokenizer"), "--max-model-len", "4096", "--dtype", "bfloat16"], is_ready):
        return speeds(session, port)


def transformers(session):
    """The same speeds with transformers, in the Python of the oracles where there is one."""
    python = os.environ.get("TAOPD_ORACLE_PYTHON", "")
    lengths = (128, 8, 64) if session.small else (2048, 128, 1024)
    code, output = session.run_any([python if pathlib.Path(python).is_file() else sys.executable,
                                "tests/gpu/transformers_speeds.py", session.shape_model, on_device(session)[0], *lengths])
    line = output.strip().splitlines()[-1] if output.strip() else "no output"
    if code == 77:
        raise Skipped(line)
    if code != 0:
        raise Failed(f"transformers_speeds.py ended with {code}: {line[:200]}")
    return line


PARTS = [
    Part("device", device, 60, is_preparation=True),
    Part("build", build, 3600, ("device",), is_preparation=True),
    Part("prepare", prepare, 120, ("build",)),
    Part("losses", losses, 120, ("prepare",)),
    Part("self check", self_check, 60, ("losses",)),
    Part("composed", composed, 120, ("prepare",)),
    Part("kernel tests", kernel_tests, 240, ("build",)),
    Part("shape", shape, 120, ("build",)),
    Part("eager", lambda session: serving(session, ["--cuda-graphs", "false"]), 90, ("shape",)),
    Part("graphs", graphs, 90, ("shape",)),
    Part("distill", distill, 120, ("shape",)),
    Part("attention", benchmark("attention"), 60, ("build",)),
    Part("heads", benchmark("heads"), 120, ("build",)),
    Part("offload", offload, 90, ("losses",)),
    Part("two ranks", two_ranks, 90, ("losses",)),
    *(Part(check, sanitizer(check), 120, ("kernel tests",)) for check in CHECKS),
    Part("transformers", transformers, 90, ("shape",)),
    Part("vllm", vllm, 180, ("shape", "prepare")),
]
