"""Writes bandit.json: the paper's bandit for one draw of initial logits, from the paper's formulas alone.

Usage: python make_bandit.py > bandit.json

Gradients are automatic differentiation's (PyTorch, float64) of the losses as the paper writes them; AdamW is PyTorch's
own with its default weight decay, learning rate 1e-3. torch 2.11.0, numpy 2.
"""
import json

import numpy as np
import torch

STEPS = 20000
RECORDED = (1, 100, 2000, STEPS)
K = 8

torch.set_num_threads(1)
v = np.arange(1, 31)
q = np.exp(-((v - 10) ** 2) / (2 * 2**2)) + 0.88 * np.exp(-((v - 20) ** 2) / (2 * 2**2))
q = torch.tensor(q / q.sum())
support = torch.topk(q, K).indices
outside = torch.ones(30, dtype=torch.bool)
outside[support] = False


def full(p):
    return (p * (p / q).log()).sum()


def normalized(p):
    p_bar, q_bar = p[support] / p[support].sum(), q[support] / q[support].sum()
    return (p_bar * (p_bar / q_bar).log()).sum()


def unnormalized(p):
    return (p[support] * (p[support] / q[support]).log()).sum()


def ta_opd(p):
    p_tail, q_tail = p[outside].sum(), q[outside].sum()
    return unnormalized(p) + p_tail * (p_tail / q_tail).log()


def main():
    initial = np.random.default_rng(0).normal(0, 0.01, 30)
    runs = []
    for loss in (full, ta_opd, normalized, unnormalized):
        z = torch.tensor(initial, requires_grad=True)
        optimizer = torch.optim.AdamW([z], lr=1e-3)
        points = []
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss(torch.softmax(z, 0)).backward()
            optimizer.step()
            if step in RECORDED:
                p = torch.softmax(z.detach(), 0)
                points.append({"step": step, "logits": z.tolist(), "full_kl": full(p).item(),
                               "student_tail": p[outside].sum().item()})
        runs.append({"objective": loss.__name__, "points": points})
    print(json.dumps({"k": K, "steps": STEPS, "initial_logits": initial.tolist(), "teacher": q.tolist(),
                      "teacher_tail": q[outside].sum().item(), "runs": runs}))


if __name__ == "__main__":
    main()
