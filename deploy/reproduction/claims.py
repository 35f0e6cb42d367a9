"""The paper's claims, as deploy/reproduce checks them. They are data: the runs, what is measured, and the rule.

A rule is a Python expression over the claim's figures (each the mean over the seeds) and NOISE. It is written before
the runs are made (docs/reproduction.md names the exceptions), and is not changed to make a claim hold. `unclear`, where
a claim has it, is an expression that says that the measurement cannot decide; it counts only if the rule does not hold.
"""

import dataclasses

from measures import (accuracy, bandit, correlation, enumerated, estimator_variance, greedy, growth, largest, last,
                      start, turn_ratio)
from run_metrics import FAILURE
from runs import objective


@dataclasses.dataclass(frozen=True)
class Claim:
    name: str
    section: str  # of the paper
    claim: str
    paper: str  # what the paper saw
    figures: dict  # name -> measure
    rule: str
    unclear: str = "False"
    note: str = ""

    @property
    def runs(self):
        """The runs that the measures read, in order and without repetitions."""
        return list(dict.fromkeys(run for measure in self.figures.values() for run in measure.runs))


TA, SC, FULL = objective("ta_opd"), objective("sc_ta_opd"), objective("full")
SAMPLED, EMA = objective("sampled_token"), objective("ema_pg")
NORMALIZED, UNNORMALIZED = objective("normalized"), objective("unnormalized")
KS = (2, 4, 8, 16, 32)


def with_k(name, k):
    """k = 8 is the recipe's."""
    return objective(name) if k == 8 else objective(name, ("teacher.top_k", k), quick=k in (2, 32))


def from_teacher(name, teacher):
    return objective(name, teacher=teacher, quick=False)


def with_length(name, tokens):
    return objective(name, ("data.max_response_length", tokens), quick=False)


def with_support(support):
    return objective("normalized", ("objective.support", support))


# The student forgets the tail token for 20 steps, and then learns with it.
TAKEN = objective("unnormalized", ("trainer.total_steps", 20), ("optimizer.schedule", "constant"),
                  ("optimizer.min_lr_ratio", 0))
PUT_BACK = dataclasses.replace(objective("ta_opd"), name="ta_opd_after_unnormalized", start_from=TAKEN)
DERIVED = dataclasses.replace(objective("ta_opd"), name="ta_opd_without_tail", protocol="vllm+http")


CLAIMS = (
    Claim("bandit", "Appendix, Synthetic experiment",
          "On the 30-armed bandit TA-OPD matches the teacher's tail; normalized gives the tail substantially more.",
          "A figure: the tail under normalized is far above the teacher's, under TA-OPD and SC-TA-OPD it is the "
           "teacher's.",
          {"teacher's tail": bandit("teacher", "tail"), "tail, ta_opd": bandit("ta_opd", "student_tail"),
           "tail, sc_ta_opd": bandit("sc_ta_opd", "student_tail"),
           "tail, normalized": bandit("normalized", "student_tail")},
          "abs(tail_ta_opd - teachers_tail) < 0.01 and abs(tail_sc_ta_opd - teachers_tail) < 0.05 and "
          "tail_normalized > 1.5 * teachers_tail"),
    Claim("landscape", "Appendix, Synthetic experiment",
          "On the landscape of the full reverse KL, TA-OPD moves to full's low-loss region; normalized ends far from "
           "it.",
          "A figure: the trajectories of full and TA-OPD end near the teacher, that of normalized does not.",
          {"full KL, full": bandit("full", "full_kl"), "full KL, ta_opd": bandit("ta_opd", "full_kl"),
           "full KL, sc_ta_opd": bandit("sc_ta_opd", "full_kl"),
           "full KL, normalized": bandit("normalized", "full_kl")},
          "full_KL_full < 0.01 and full_KL_ta_opd < 0.5 * full_KL_normalized and full_KL_sc_ta_opd < full_KL_ta_opd"),
    Claim("collapse", "Appendix, Ablation on the Tail Token",
          "Without the tail token (unnormalized) training collapses within 50 steps.",
          "The student's tail rises above 0.9; Avg@8 on MATH500 is 3.35, under TA-OPD 77.88.",
          {"largest tail in 50 steps": largest(UNNORMALIZED, "policy/student_tail", 50),
           "accuracy, unnormalized": accuracy(UNNORMALIZED), "accuracy, ta_opd": accuracy(TA)},
          f"largest_tail_in_50_steps > 0.9 and accuracy_unnormalized <= {FAILURE} * accuracy_ta_opd"),
    Claim("tail token put back", "Appendix, Ablation on the Tail Token",
          "The tail token is the missing term: put back after 20 steps without it, it brings the student back.",
          "The paper does not take it away and put it back; it shows that the loss with it is least at the teacher.",
          {"tail when taken away": last(TAKEN, "policy/student_tail"),
           "tail at the end": last(PUT_BACK, "policy/student_tail"),
           "teacher's tail at the end": last(PUT_BACK, "policy/teacher_tail"), "accuracy": accuracy(PUT_BACK),
           "accuracy, never taken away": accuracy(TA)},
          "tail_when_taken_away > 0.5 and tail_at_the_end < 2 * teachers_tail_at_the_end and "
          f"accuracy > {FAILURE} * accuracy_never_taken_away"),
    Claim("normalized fails", "Results, table 1",
          "Normalized top-k loses against TA-OPD; here the bar is half of full's accuracy.",
          "Avg. 33.42 against 38.68 (Qwen2.5-7B), 10.60 against 18.65 (Llama-3.1-8B), 42.22 against 44.62 "
           "(Qwen3-1.7B).",
          {"accuracy, normalized": accuracy(NORMALIZED), "accuracy, ta_opd": accuracy(TA),
           "accuracy, full": accuracy(FULL), "greedy, normalized": greedy(NORMALIZED), "greedy, ta_opd": greedy(TA)},
          f"accuracy_normalized <= {FAILURE} * accuracy_full and accuracy_normalized < accuracy_ta_opd"),
    Claim("within noise of full", "Method, proposition 4; Discussion, table 2",
          "TA-OPD is a tight bound of the full reverse KL; the correction of SC-TA-OPD adds little.",
          "Avg. of TA-OPD and SC-TA-OPD: 53.62 and 54.39 (1.5B), 44.62 and 44.65 (Qwen3-1.7B). Full was not trained.",
          {"accuracy, full": accuracy(FULL), "accuracy, ta_opd": accuracy(TA), "accuracy, sc_ta_opd": accuracy(SC)},
          "accuracy_full - accuracy_ta_opd <= NOISE and accuracy_full - accuracy_sc_ta_opd <= NOISE"),
    Claim("sampled token", "Results, table 1",
          "TA-OPD is better than sampled-token OPD.",
          "Avg. 38.68 against 37.23, 18.65 against 15.62, 44.62 against 44.27.",
          {"accuracy, ta_opd": accuracy(TA), "accuracy, sampled_token": accuracy(SAMPLED)},
          "accuracy_ta_opd > accuracy_sampled_token"),
    Claim("tail growth", "Motivation, Empirical Study",
          "Under normalized, the student's tail grows.",
          "It grows steadily in three pairs of models, to 0.6 for Qwen2.5-7B.",
          {"tail at the start": start(NORMALIZED, "policy/student_tail"),
           "largest tail": largest(NORMALIZED, "policy/student_tail"),
           "tail at the end": last(NORMALIZED, "policy/student_tail"),
           "tail at the end, ta_opd": last(TA, "policy/student_tail")},
          "tail_at_the_end > tail_at_the_start"),
    Claim("tail matched", "Results, figure 4",
          "Under TA-OPD and SC-TA-OPD, the student's tail comes to the teacher's.",
          "Both tails stay close to 0.",
          {"tail, ta_opd": last(TA, "policy/student_tail"), "tail, sc_ta_opd": last(SC, "policy/student_tail"),
           "teacher's tail": last(TA, "policy/teacher_tail"), "tail at the start": start(TA, "policy/student_tail")},
          "abs(tail_ta_opd - teachers_tail) < 0.1 * tail_at_the_start and "
          "abs(tail_sc_ta_opd - teachers_tail) < 0.1 * tail_at_the_start"),
    Claim("entropy", "Motivation, Empirical Study",
          "Under normalized, the student's entropy increases.",
          "To about 6 for Qwen2.5-7B; below 1.5 under TA-OPD.",
          {"at the start": start(NORMALIZED, "policy/entropy"), "at the end": last(NORMALIZED, "policy/entropy"),
           "at the end, ta_opd": last(TA, "policy/entropy")},
          "at_the_end > at_the_start"),
    Claim("entropy, unnormalized", "Appendix, Ablation on the Tail Token",
          "Under unnormalized, the student's entropy grows.",
          "It grows monotonically.",
          {"at the start": start(UNNORMALIZED, "policy/entropy"), "at the end": last(UNNORMALIZED, "policy/entropy")},
          "at_the_end > at_the_start"),
    Claim("uncertain teacher", "Motivation, Empirical Study",
          "A student with a large tail reaches prefixes on which the teacher is less certain.",
          "The teacher's tail rises to about 0.5 under normalized and stays close to 0 under TA-OPD.",
          {"teacher's tail, normalized": last(NORMALIZED, "policy/teacher_tail"),
           "teacher's tail, ta_opd": last(TA, "policy/teacher_tail")},
          "teachers_tail_normalized > teachers_tail_ta_opd"),
    Claim("tail and accuracy", "Motivation, figure 2",
          "Along a run of normalized, accuracy falls as the tail grows.",
          "Pearson correlation -0.91 over the checkpoints of one run.",
          {"correlation": correlation(NORMALIZED, "policy/student_tail", "eval/accuracy")},
          "correlation < -0.5"),
    Claim("overlap", "Appendix, Top-k Overlap Ratio",
          "The overlap of the student's and the teacher's top k is higher under TA-OPD than under normalized.",
          "Higher for three pairs of models.",
          {"ta_opd": last(TA, "policy/overlap"), "normalized": last(NORMALIZED, "policy/overlap")},
          "ta_opd > normalized"),
    Claim("small k suffices", "Results, figure 5",
          "TA-OPD's accuracy does not depend on k once k is at least 2.",
          "30.43 at k = 2, at best 30.86 (k = 32).",
          {f"accuracy, k = {k}": accuracy(with_k("ta_opd", k)) for k in KS},
          "max(accuracy_k_8, accuracy_k_32) - accuracy_k_2 <= NOISE"),
    Claim("small k, larger tail", "Appendix, Detailed Analysis",
          "Under normalized, the tail's growth and the entropy are larger for smaller k.",
          "For k = 8, 16, 32, 64 in this order.",
          {**{f"growth, k = {k}": growth(with_k("normalized", k), "policy/student_tail") for k in KS},
           **{f"accuracy, k = {k}": accuracy(with_k("normalized", k)) for k in KS}},
          "growth_k_2 > growth_k_8 > growth_k_32"),
    Claim("gap: tail", "Appendix, Detailed Analysis",
          "The tail's growth under normalized needs a large gap between student and teacher.",
          "It occurs for Qwen3-1.7B-Base and not for Qwen3-8B-Base, with Qwen3-8B as the teacher.",
          {f"growth, {teacher}": growth(from_teacher("normalized", teacher) if teacher != "far" else NORMALIZED,
                                        "policy/student_tail") for teacher in ("near", "between", "far")},
          "growth_far > growth_between > growth_near"),
    Claim("gap: accuracy", "Discussion, figure 6",
          "TA-OPD's advantage over normalized is largest where the gap is large.",
          "13.50 points on MATH500 for Qwen2.5-Math-1.5B, similar accuracies for DeepSeek-R1-Distill-Qwen-1.5B.",
          {f"accuracy of {name}, {teacher}": accuracy(from_teacher(name, teacher)
                                                      if teacher != "far" else objective(name))
           for teacher in ("near", "between", "far") for name in ("ta_opd", "normalized")},
          "accuracy_of_ta_opd_far - accuracy_of_normalized_far > "
          "accuracy_of_ta_opd_near - accuracy_of_normalized_near"),
    Claim("length", "Appendix, Detailed Analysis",
          "Under normalized, the tail grows more if responses may be longer.",
          "More with 7168 tokens than with 4096.",
          {"growth, 12 tokens": growth(with_length("normalized", 12), "policy/student_tail"),
           "growth, 24 tokens": growth(with_length("normalized", 24), "policy/student_tail"),
           "growth, 49 tokens": growth(NORMALIZED, "policy/student_tail")},
          "growth_49_tokens > growth_24_tokens > growth_12_tokens",
          note="A whole response has 43 tokens; a shorter limit cuts it off."),
    Claim("support: tail", "Appendix, Detailed Analysis",
          "With the student's top k as the support, the tail does not grow under normalized.",
          "It grows under the teacher's support alone. Each tail is that of the support in use.",
          {"growth, teacher's support": growth(NORMALIZED, "policy/student_tail"),
           "growth, student's support": growth(with_support("student"), "policy/student_tail"),
           "growth, union": growth(with_support("union"), "policy/student_tail"),
           "largest tail, student's support": largest(with_support("student"), "policy/student_tail")},
          "growth_students_support <= 0.01 and growth_teachers_support > growth_students_support"),
    Claim("support: accuracy", "Appendix, table 3",
          "Normalized is better with the teacher's top k than with the student's.",
          "Avg. 30.18 against 29.78.",
          {"accuracy, teacher's support": accuracy(NORMALIZED),
           "accuracy, student's support": accuracy(with_support("student")),
           "accuracy, union": accuracy(with_support("union"))},
          "accuracy_teachers_support > accuracy_students_support"),
    Claim("variance, enumerated", "Discussion, proposition 5; Appendix, Discussion of EMA-PG",
          "SC-TA-OPD is unbiased in value and gradient, and its variance is EMA-PG's minus the paper's formula: "
          "smaller whenever the student's tail exceeds the teacher's.",
          "Proofs. Here: random policies of 12 tokens, k = 4, every sampled token weighed by its probability.",
          {"bias of the value": enumerated("value_bias"), "bias of the gradient": enumerated("gradient_bias"),
           "error of the formula": enumerated("formula_error"),
           "share with a smaller variance": enumerated("smaller_share"),
           "variance over EMA-PG's": enumerated("ratio_to_ema_pg"),
           "variance over sampled_token's": enumerated("ratio_to_sampled_token")},
          "bias_of_the_value < 1e-9 and bias_of_the_gradient < 1e-9 and error_of_the_formula < 1e-9 and "
          "share_with_a_smaller_variance == 1"),
    Claim("variance, in runs", "Appendix, Discussion of EMA-PG",
          "On the same rollouts SC-TA-OPD's loss varies less than EMA-PG's and than sampled-token's.",
          "Argued from the formula and from tails that are larger than the teacher's; not measured.",
          {name: estimator_variance(name) for name in ("sc_ta_opd", "ema_pg", "sampled_token")},
          "sc_ta_opd < ema_pg and sc_ta_opd < sampled_token",
          note="The figure is the variance over the steps of a step's loss minus the exact loss, times 1e6. The student "
               "is frozen, so that all runs of a seed see the same rollouts. A first form of this rule also asked for "
               "ema_pg < sampled_token, which the paper does not claim; that was not met."),
    Claim("derived tail", "Appendix, Numerically Stable Computation",
          "A teacher that sends no tail (vLLM) is enough: the tail is derived from its top k.",
          "All of the paper's runs derive it.",
          {"accuracy, tail sent": accuracy(TA), "accuracy, tail derived": accuracy(DERIVED),
           "derived tails in a step": last(DERIVED, "policy/derived_tails"),
           "clamped tails in a step": last(DERIVED, "policy/clamped_tails")},
          "accuracy_tail_sent - accuracy_tail_derived <= NOISE and derived_tails_in_a_step > 0"),
    Claim("overhead", "Appendix, Computational Overhead",
          "A step of TA-OPD takes at most 1 % longer than one of normalized.",
          "1.05 % over 300 steps, some of it from longer responses.",
          {"overhead": turn_ratio("overhead"), "error": turn_ratio("error"), "pairs of steps": turn_ratio("pairs")},
          "overhead + error <= 0.01",
          unclear="overhead - error <= 0.01",
          note="Both objectives train a frozen student on the same rollouts, in turn and with no other run beside them. "
               "The overhead is the median over pairs of equal steps of the ratio of time/train_s, minus 1; the error is "
               "half of its 95 % interval."),
)
