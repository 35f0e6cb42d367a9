#!/usr/bin/env python3
"""Writes clipped_adamw.json: six updates by torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW in
float64, with gradients on both sides of the limit.

Needs torch 2.11 (tests/requirements-oracle.txt). Usage: make_clipped_adamw.py
"""
import json
import math
import pathlib

import torch

MAX_NORM, LR, BETAS, EPS, DECAY = 0.75, 0.02, (0.9, 0.95), 1e-8, 0.1
# Norms of the whole gradient, relative to MAX_NORM: below, just above, far above, tiny, above.
SIZES = (0.4, 1.001, 40.0, 1e-4, 0.999, 3.0)
SHAPES = {"matrix": (3, 4), "vector": (5,), "other": (2, 3)}


def filled(shape: tuple[int, ...], phase: float) -> torch.Tensor:
    """Numbers that are float32, so that both sides start from the same ones."""
    count = math.prod(shape)
    values = torch.tensor([math.sin(1.7 * i + phase) for i in range(count)])
    return values.float().double().reshape(shape)


def main() -> None:
    parameters = {name: filled(shape, len(name)).requires_grad_() for name, shape in SHAPES.items()}
    matrices = [p for p in parameters.values() if p.dim() >= 2]
    vectors = [p for p in parameters.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPS)
    flat = lambda tensor: tensor.detach().flatten().tolist()
    golden = {
        "torch": torch.__version__,
        "max_grad_norm": MAX_NORM, "lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY,
        "shapes": SHAPES,
        "initial": {name: flat(p) for name, p in parameters.items()},
        "steps": [],
    }
    for step, size in enumerate(SIZES):
        gradients = {name: filled(shape, 10 * step + len(name)) for name, shape in SHAPES.items()}
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
        for name, parameter in parameters.items():
            parameter.grad = (gradients[name] * (size * MAX_NORM / norm)).float().double()
        row = {"gradients": {name: flat(p.grad) for name, p in parameters.items()}}
        row["norm"] = torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM).item()
        optimizer.step()
        row["parameters"] = {name: flat(p) for name, p in parameters.items()}
        row["exp_avg"] = {name: flat(optimizer.state[p]["exp_avg"]) for name, p in parameters.items()}
        golden["steps"].append(row)
    path = pathlib.Path(__file__).with_name("clipped_adamw.json")
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
