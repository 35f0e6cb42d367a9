"""Measures what trainer.async_steps hides: steps with a teacher that is far away, for several numbers of steps.

    ninja -C build/cpu taopd-trainer taopd-teacher
    tests/bench/run async_steps [--latency 0.5] [--steps 8] [--async-steps 0,1,2] [--workers 1]

The teacher is deploy/examples/stories260K behind a proxy that delays everything that it sends by --latency seconds.
The student has random weights. The trainer computes with one thread for generation and one for training, so that both
have a core on a machine with two. With --workers, processes of taopd-teacher generate in its place. Each run is a process of its own; the runs follow one another.

Prints a table in Markdown of seconds per step: the whole step, the median over the steps after the warm-up, and its
parts. `bound` is the larger of training and of generation with scoring, which N = 1 can reach at best; both are taken
from the run with N = 0, where nothing overlaps. The goal is a step of at most 1.1 times the bound.
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(HERE.parent))
from machine import Load, processor

GOAL = 1.1
WARM_UP = 3
STUDENT = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 128,
           "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
           "head_dim": 32, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
           "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
           "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}


class DelayingProxy:
    """Forwards connections to a port, and delays what comes back."""

    def __init__(self, port, latency_s):
        self.target, self.latency_s, self.port = port, latency_s, 0
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.serve(started)), daemon=True).start()
        started.wait()

    async def serve(self, started):
        server = await asyncio.start_server(self.forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await server.serve_forever()

    async def forward(self, reader, writer):
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pieces = asyncio.Queue()

        async def take():
            while data := await their_reader.read(1 << 16):
                pieces.put_nowait((time.monotonic() + self.latency_s, data))
            pieces.put_nowait((0, b""))

        async def give():
            while True:
                at, data = await pieces.get()
                if not data:
                    break
                await asyncio.sleep(max(0, at - time.monotonic()))
                writer.write(data)
            writer.close()

        async def send():
            while data := await reader.read(1 << 16):
                their_writer.write(data)
            their_writer.close()

        await asyncio.gather(take(), give(), send(), return_exceptions=True)


def run(command, log):
    with open(log, "w", encoding="utf-8") as output:
        if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
            sys.exit(pathlib.Path(log).read_text()[-3000:])


def prepare(options, work):
    """Makes prompts and a student with random weights."""
    draw = random.Random(3)
    prompts = [[1] + [draw.randrange(3, 512) for _ in range(15)] for _ in range(256)]
    (work / "prompts.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts))
    (work / "pairs.jsonl").write_text("".join(json.dumps({"prompt_ids": ids, "response_ids": [5, 7]}) + "\n"
                                              for ids in prompts[:8]))
    (work / "student.json").write_text(json.dumps(STUDENT))
    (work / "sft.yaml").write_text(json.dumps(
        {"run": {"name": "student", "dir": str(work / "student")}, "model": {"config": str(work / "student.json")},
         "data": {"train": [str(work / "pairs.jsonl")], "max_length": 64}, "optimizer": {"lr": 1e-4},
         "trainer": {"total_steps": 1, "batch_size": 8, "num_threads": 1}}))
    run([options.trainer, "sft", "--config", str(work / "sft.yaml")], work / "sft.log")


def serve(options, model, work, name, more=()):
    """Starts a taopd-teacher. Returns the process and its gRPC port."""
    ready = work / f"{name}.json"
    with open(work / f"{name}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([options.teacher, "--model", str(model), "--port", "0", "--grpc-port", "0",
                                    "--ready-file", str(ready), "--num-threads", "1", *more],
                                   stdout=log, stderr=subprocess.STDOUT)
    while not (ready.exists() and ready.stat().st_size):
        if process.poll() is not None:
            sys.exit((work / f"{name}.log").read_text())
        time.sleep(0.05)
    return process, json.loads(ready.read_text())["grpc_port"]


def train(options, work, port, workers, async_steps):
    """Returns the metrics of the steps after the warm-up."""
    config = {"run": {"name": "bench", "dir": str(work / "run"), "seed": 7}, "student": {"model": str(work / "student/model")},
              "teacher": {"endpoints": [f"grpc://127.0.0.1:{port}"]},
              "data": {"train": [str(work / "prompts.jsonl")], "train_batch_size": options.prompts, "max_prompt_length": 16,
                       "max_response_length": 64},
              "rollout": {"n": 4, "kv_cache_gb": 0.25, "endpoints": [f"grpc://127.0.0.1:{port}" for port in workers]}, "optimizer": {"lr": 1e-5}, "eval": {"measure": "none"},
              "trainer": {"total_steps": WARM_UP + options.steps + async_steps, "mini_batch_size": options.prompts,
                          "save_every": 0, "num_threads": 1, "async_steps": async_steps}}
    (work / "train.yaml").write_text(json.dumps(config))
    run([options.trainer, "train", "--config", str(work / "train.yaml"), "--overwrite"], work / "train.log")
    rows = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    return rows[WARM_UP:WARM_UP + options.steps]  # the last steps have nothing to generate ahead


def median(rows, *names):
    return statistics.median(sum(row[name] for name in names) for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/cpu/bin/taopd-trainer"))
    parser.add_argument("--teacher", default=str(ROOT / "build/cpu/bin/taopd-teacher"))
    parser.add_argument("--latency", type=float, default=0.5, help="seconds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a run (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step (default: %(default)s)")
    parser.add_argument("--async-steps", default="0,1,2", help="values, of which the first is 0 (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0,
                        help="servers of rollouts; 0: the trainer generates (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        prepare(options, work)
        servers = []
        try:
            servers.append(serve(options, ROOT / "deploy/examples/stories260K", work, "teacher"))
            for i in range(options.workers):
                servers.append(serve(options, work / "student/model", work, f"worker-{i}",
                                     ["--trainable", "--kv-cache-memory-bytes", "256MiB"]))
            proxy = DelayingProxy(servers[0][1], options.latency)
            workers = [port for _, port in servers[1:]]
            print(f"{processor()}; latency {options.latency} s; {options.workers} workers\n")
            print("| N | step | generation wait | teacher wait | copy | training | bound | step / bound | others' cores |")
            print("|---|---|---|---|---|---|---|---|---|")
            bound = None
            for async_steps in map(int, options.async_steps.split(",")):
                load = Load()
                rows = train(options, work, proxy.port, workers, async_steps)
                step = median(rows, "time/step_s")
                if bound is None:
                    bound = max(median(rows, "time/train_s"),
                                median(rows, "time/rollout_wait_s", "time/teacher_wait_s"))
                print(f"| {async_steps} | {step:.3f} | {median(rows, 'time/rollout_wait_s'):.3f} "
                      f"| {median(rows, 'time/teacher_wait_s'):.3f} | {median(rows, 'time/pack_s'):.3f} "
                      f"| {median(rows, 'time/train_s'):.3f} | {bound:.3f} | {step / bound:.2f} | {load.others():.1f} |",
                      flush=True)
            print(f"\nGoal for N = 1: step / bound at most {GOAL}.")
        finally:
            for process, _ in servers:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
