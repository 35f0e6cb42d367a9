"""Runs the training steps of one rank with PyTorch's DistributedDataParallel over Gloo, the peer of bin/dist_bench.

    peer.py MODEL_DIR OPTIONS.json STORE_FILE  with RANK and WORLD_SIZE

Sequences, loss and optimizer are those of dist_bench.cc. Gradients are views of DDP's buckets, AdamW is fused, and
only the gradients of the last micro-batch are synchronized. Prints one JSON object as dist_bench does.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "step"))
from peers import PlainModel, tail_aware_kl  # noqa: E402


def batch_of(numbers, options, vocab_size):
    prompt, response, top_k = options["prompt_tokens"], options["response_tokens"], options["top_k"]
    length = prompt + response
    tokens = torch.tensor([[(7919 * (length * i + t) + 11) % (vocab_size - 1000) for t in range(length)]
                           for i in numbers])
    first = torch.tensor([[(131 * i + 17 * row) % (vocab_size // top_k) for row in range(response)]
                          for i in numbers])
    ids = first[..., None] + torch.arange(top_k) * (vocab_size // top_k)
    log_q = torch.full(ids.shape, -0.1 - math.log(top_k))
    return tokens[:, :-1], ids, log_q, torch.full(first.shape, math.log(1 - math.exp(-0.1)))


def run(directory, options_path, store):
    options = json.loads(pathlib.Path(options_path).read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(options["threads"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = PlainModel(directory).float()
    vocab_size = model.config["vocab_size"]
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["lr"], betas=(0.9, 0.999), weight_decay=0.0,
                                  fused=True)
    mine, passes = options["sequences"] // world, options["micro_batches"]
    bounds = [m * mine // passes for m in range(passes + 1)]
    micro_batches = [batch_of(range(mine * rank + low, mine * rank + high), options, vocab_size)
                     for low, high in zip(bounds, bounds[1:])]
    num_rows = options["sequences"] * options["response_tokens"]

    def step():
        dist.barrier()
        seconds, start, processor_start = {}, time.monotonic(), time.process_time()
        optimizer.zero_grad(set_to_none=False)
        total = torch.zeros((), dtype=torch.float64)
        for m, (inputs, ids, log_q, log_q_tail) in enumerate(micro_batches):
            with contextlib.nullcontext() if m + 1 == passes else parallel.no_sync():
                logits = parallel(inputs)[:, options["prompt_tokens"] - 1:]
                loss = tail_aware_kl(logits.log_softmax(-1), ids, log_q, log_q_tail).sum() / num_rows
                del logits
                (loss * world).backward()  # DDP divides by the number of ranks
            total += loss.detach()
        now = time.monotonic()
        seconds["passes"], last = now - start, now
        dist.all_reduce(total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        now = time.monotonic()
        seconds["norm"], last = now - last, now
        optimizer.step()
        now = time.monotonic()
        seconds["update and weights"] = now - last
        seconds["step"], seconds["loss"] = now - start, float(total)
        seconds["processor"] = time.process_time() - processor_start
        return seconds

    result = {}
    for i in range(options["warm_up"]):
        loss = step()["loss"]
        if i == 0:
            result["first_loss"] = loss
    result["steps"] = [step() for _ in range(options["steps"])]
    result["parameters"] = sum(p.numel() for p in model.parameters())
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(*sys.argv[1:])
