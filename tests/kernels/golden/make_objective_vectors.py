"""Writes objective_vectors.jsonl: losses and gradients of every objective for small vocabularies.

Usage: python make_objective_vectors.py SHARED_VECTORS > objective_vectors.jsonl

SHARED_VECTORS is data/objective_vectors.jsonl of the shared folder: autograd over the full softmax
with the exact tail. Its float64 rows are thinned to every fourth of each objective. The objectives
that it does not contain with an exact tail are computed here from the same inputs by PyTorch's
float64 autograd, with the formulas of the sources that
kernels/include/taopd/objective/objective.h names and stop-gradients written as detach(). Made with
torch 2.11.0.
"""
import json
import sys

import torch

BETA = 0.3  # parameter of jsd
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # of policy_gradient
ENTROPY_THRESHOLD = 0.8  # of entropy_aware; its vectors alternate between a teacher below and above


def quantities(row):
    z = torch.tensor(row["logits"], dtype=torch.float64, requires_grad=True)
    ids = torch.tensor(row["support_ids"])
    log_p_all = torch.log_softmax(z, -1)
    outside = torch.ones(row["vocab"], dtype=torch.bool)
    outside[ids] = False
    log_q = torch.tensor(row["teacher_logprobs"], dtype=torch.float64)
    return dict(
        z=z,
        log_p=log_p_all[ids],
        log_q=log_q,
        log_p_tail=torch.logsumexp(log_p_all[outside], -1) if outside.any() else None,
        log_q_tail=torch.tensor(row["teacher_log_tail"], dtype=torch.float64),
        log_py=log_p_all[row["sampled_id"]],
        log_qy=torch.tensor(row["teacher_logprob_sampled"], dtype=torch.float64),
        inside=row["sampled_id"] in row["support_ids"],
        teacher_entropy=row.get("teacher_entropy"),
        advantage=row.get("advantage"),
        behavior=row.get("behavior_logprob"),
    )


def normalized(q):
    log_p = torch.log_softmax(q["log_p"], -1)
    log_q = torch.log_softmax(q["log_q"], -1)
    return (log_p.exp() * (log_p - log_q)).sum()


def unnormalized(q):
    return (q["log_p"].exp() * (q["log_p"] - q["log_q"])).sum()


def score(q, advantage):
    return advantage.detach() * (q["log_py"] - q["log_py"].detach())


def ratio(q):
    return q["log_py"] - q["log_qy"]


# Each returns (value, something whose gradient is the objective's gradient).
def both(loss):
    return loss, loss


def ema_pg(q):
    r = (q["log_p"] - q["log_q"]).detach()
    extra = torch.zeros((), dtype=torch.float64) if q["inside"] else ratio(q).detach()
    weight = (q["log_py"] - q["log_py"].detach()).exp()
    return both((q["log_p"].exp() * r).sum() + weight * extra)


def jsd(q):
    p = torch.cat([q["log_p"].exp(), q["log_p_tail"].exp()[None]])
    t = torch.cat([q["log_q"].exp(), q["log_q_tail"].exp()[None]])
    m = BETA * t + (1 - BETA) * p
    return both((BETA * t * (t / m).log() + (1 - BETA) * p * (p / m).log()).sum())


def forward_kl(q):
    log_p = torch.log_softmax(q["log_p"], -1)
    log_q = torch.log_softmax(q["log_q"], -1)
    return (log_q.exp() * (log_q - log_p)).sum()


def entropy_aware(q):
    extra = forward_kl(q) if q["teacher_entropy"] > ENTROPY_THRESHOLD else 0
    return ratio(q) + extra, score(q, ratio(q)) + extra


def policy_gradient(q):
    ratio = (q["log_py"] - q["behavior"]).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return both(-torch.min(ratio * q["advantage"], clipped * q["advantage"]))


# The logs of the ratios of policy_gradient's vectors: inside of both clips, above and below.
LOG_RATIOS = (0.1, 0.5, -0.4)


OBJECTIVES = {
    "normalized": lambda q: both(normalized(q)),
    "unnormalized": lambda q: both(unnormalized(q)),
    "mopd": lambda q: both(unnormalized(q) + q["log_q"].exp().sum() - q["log_p"].exp().sum()),
    "ema_pg": ema_pg,
    "sampled_token_k2": lambda q: both(ratio(q) ** 2 / 2),
    "sampled_token_k3": lambda q: both(torch.expm1(-ratio(q)) + ratio(q)),
    "vopd": lambda q: (ratio(q), score(q, ratio(q) - normalized(q))),
    "jsd": jsd,
    "entropy_aware": entropy_aware,
    "cross_entropy": lambda q: both(-q["log_py"]),
    "policy_gradient": policy_gradient,
}


def main():
    rows = [json.loads(line) for line in open(sys.argv[1])]
    rows = [row for row in rows if row["source"] == "float64"]
    for name in dict.fromkeys(row["objective"] for row in rows):
        for row in [row for row in rows if row["objective"] == name][1::4]:
            print(json.dumps(row))
    inputs = [row for row in rows if row["objective"] == "ta_opd"][3::6]
    for name, objective in OBJECTIVES.items():
        for i, row in enumerate(inputs):
            if name == "entropy_aware":
                row = dict(row, teacher_entropy=0.3 + i % 2, entropy_threshold=ENTROPY_THRESHOLD)
            if name == "policy_gradient":
                behavior = quantities(row)["log_py"].item() - LOG_RATIOS[i % 3]
                row = dict(row, behavior_logprob=min(behavior, 0.0), advantage=(-1) ** (i // 3) * 0.8,
                           clip_low=CLIP_LOW, clip_high=CLIP_HIGH)
            q = quantities(row)
            value, surrogate = objective(q)
            (grad,) = torch.autograd.grad(surrogate, q["z"])
            made = dict(row, id=f"{name}-{row['id']}", objective=name)
            made["expected"] = {"loss": value.item(), "grad": grad.tolist()}
            if name == "jsd":
                made["beta"] = BETA
            print(json.dumps(made))


if __name__ == "__main__":
    main()
