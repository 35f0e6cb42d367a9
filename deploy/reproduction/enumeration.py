"""Bias and variance of the estimators by enumeration: every sampled token of small random policies, in float64.

The losses and gradients are those of `taopd-trainer objective`; the expectations, the exact KL and the paper's formula
of the variances' difference are computed here.
"""

import json
import math
import random
import subprocess

VOCABULARY, K, POLICIES = 12, 4, 100
ESTIMATORS = ("sc_ta_opd", "ema_pg", "sampled_token")


def _log_softmax(logits):
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(z - top) for z in logits))
    return [z - log_sum for z in logits]


def _policies(rng):
    """Returns random logits of a student, log-probs of a teacher, and the teacher's top k as the support."""
    logits = [rng.gauss(0, 1.5) for _ in range(VOCABULARY)]
    log_q = _log_softmax([rng.gauss(0, 2) for _ in range(VOCABULARY)])
    support = sorted(range(VOCABULARY), key=lambda v: -log_q[v])[:K]
    return logits, log_q, support


def _cases(policies):
    for i, (logits, log_q, support) in enumerate(policies):
        log_tail = math.log(sum(math.exp(log_q[v]) for v in range(VOCABULARY) if v not in support))
        for name in ESTIMATORS:
            for y in range(VOCABULARY):
                yield {"id": f"{i} {name} {y}", "objective": name, "logits": logits, "support_ids": support,
                       "teacher_logprobs": [log_q[v] for v in support], "teacher_log_tail": log_tail, "sampled_id": y,
                       "teacher_logprob_sampled": log_q[y], "behavior_logprob": None}


def _exact(log_p, log_q):
    """Returns the full reverse KL and its gradient with respect to the logits."""
    value = sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q))
    return value, [math.exp(a) * (a - b - value) for a, b in zip(log_p, log_q)]


def _paper_gap(log_p, log_q, support):
    """Returns Var(EMA-PG) - Var(SC-TA-OPD) by the paper's formula, and whether the student's tail is the larger one."""
    outside = [v for v in range(VOCABULARY) if v not in support]
    p_tail, q_tail = (sum(math.exp(log[v]) for v in outside) for log in (log_p, log_q))
    ratio = math.log(p_tail / q_tail)
    inner = sum(math.exp(log_p[v]) / p_tail * (log_p[v] - log_q[v]) for v in outside) - ratio
    return p_tail * (1 - p_tail) * ratio * (ratio + 2 * inner), p_tail > q_tail


def measure(trainer, directory, seed):
    """Writes directory/variance.json."""
    rng = random.Random(f"variance {seed}")
    policies = [_policies(rng) for _ in range(POLICIES)]
    cases, results = directory / "variance_cases.jsonl", directory / "variance_results.jsonl"
    cases.write_text("".join(json.dumps(case) + "\n" for case in _cases(policies)), encoding="ascii")
    subprocess.run([trainer, "objective", "--input", cases, "--output", results], check=True, stdout=subprocess.DEVNULL)
    found = {result["id"]: result for result in map(json.loads, results.read_text(encoding="ascii").splitlines())}

    value_bias = gradient_bias = formula_error = 0.0
    larger_tails = smaller = 0
    variances = {name: [] for name in ESTIMATORS}
    for i, (logits, log_q, support) in enumerate(policies):
        log_p = _log_softmax(logits)
        value, gradient = _exact(log_p, log_q)
        for name in ESTIMATORS:
            drawn = [(math.exp(log_p[y]), found[f"{i} {name} {y}"]) for y in range(VOCABULARY)]
            mean = sum(weight * result["loss"] for weight, result in drawn)
            variances[name].append(sum(weight * (result["loss"] - mean) ** 2 for weight, result in drawn))
            if name == "sc_ta_opd":
                value_bias = max(value_bias, abs(mean - value))
                for v in range(VOCABULARY):
                    expected = sum(weight * result["grad"][v] for weight, result in drawn)
                    gradient_bias = max(gradient_bias, abs(expected - gradient[v]))
        gap = variances["ema_pg"][-1] - variances["sc_ta_opd"][-1]
        paper_gap, has_larger_tail = _paper_gap(log_p, log_q, support)
        formula_error = max(formula_error, abs(gap - paper_gap))
        larger_tails += has_larger_tail
        smaller += has_larger_tail and gap > 0
    mean_of = {name: sum(values) / len(values) for name, values in variances.items()}
    (directory / "variance.json").write_text(json.dumps({
        "value_bias": value_bias, "gradient_bias": gradient_bias, "formula_error": formula_error,
        "smaller_share": smaller / larger_tails,
        "ratio_to_ema_pg": mean_of["sc_ta_opd"] / mean_of["ema_pg"],
        "ratio_to_sampled_token": mean_of["sc_ta_opd"] / mean_of["sampled_token"]}, indent=2) + "\n", encoding="ascii")
