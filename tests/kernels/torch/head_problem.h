// Problems for the student's head and their oracle: autograd through the whole softmax in float64,
// built from ATen operations.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>
#include <utility>

#include "kernels/torch/head/student_head.h"
#include "taopd/objective/check_objective.h"
#include "tests/kernels/torch/random_tensor.h"

namespace taopd::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

// float32 GEMM and row kernel against float64: relative to the largest element of the tensor.
inline constexpr double kFloatTolerance = 5e-6;
// bfloat16 inputs, float32 logits: d hidden is rounded to bfloat16 at the end (2^-9 relative).
inline constexpr double kBfloat16OutputTolerance = 4e-3;

// About half of MakeProblem's teachers are above this threshold (for vocabularies above 16).
inline constexpr double kEntropyThreshold = 1.5;

struct Problem {
  at::Tensor hidden, lm_head;
  HeadTargets targets;
};

// Returns positions [begin, begin + num) of a problem.
inline Problem Narrowed(Problem problem, int64_t begin, int64_t num) {
  problem.hidden = problem.hidden.narrow(0, begin, num);
  for (at::Tensor* tensor : problem.targets.Tensors()) {
    if (tensor->defined()) *tensor = tensor->narrow(0, begin, num);
  }
  return problem;
}

inline at::Generator Seeded(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return generator;
}

inline Problem MakeProblem(int64_t num_rows, int64_t hidden_size, int64_t vocab_size, int64_t k,
                           uint64_t seed) {
  at::Generator random = Seeded(seed);
  const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
  Problem problem;
  problem.hidden = at::randn({num_rows, hidden_size}, random, floats);
  problem.lm_head = at::randn({vocab_size, hidden_size}, random, floats) * 0.7;
  const at::Tensor teacher =
      at::log_softmax(at::randn({num_rows, vocab_size}, random, floats) * 2, 1);
  const auto [log_q, ids] = teacher.topk(k, 1);
  const at::Tensor rest = teacher.scatter(1, ids, -kInf);
  const at::Tensor sampled =
      at::randint(0, vocab_size, {num_rows}, random, at::TensorOptions().dtype(at::kLong));
  HeadTargets& targets = problem.targets;
  targets.support_ids_Nk = ids.to(at::kInt);
  targets.teacher_log_probs_Nk = log_q;
  targets.teacher_log_tail_N = at::logsumexp(rest, 1);
  targets.sampled_ids_N = sampled.to(at::kInt);
  targets.teacher_sampled_log_probs_N = teacher.gather(1, sampled.unsqueeze(1)).squeeze(1);
  targets.teacher_entropy_N = -(teacher * teacher.exp()).sum(1);
  targets.row_weights_N = at::rand({num_rows}, random, floats) + 0.1;
  targets.advantages_N = at::randn({num_rows}, random, floats);
  return problem;
}

// Rounds the matrices to this type.
inline Problem WithType(Problem problem, at::ScalarType dtype) {
  problem.hidden = problem.hidden.to(dtype);
  problem.lm_head = problem.lm_head.to(dtype);
  return problem;
}

// Returns the loss and a surrogate with the same gradient, per row, from full float64 log-probs.
// Written from the papers' formulas with detach() for the stop-gradients, not from the table of
// gradients.
inline std::pair<at::Tensor, at::Tensor> OracleRows(const std::string& name,
                                                    const at::Tensor& log_p_all,
                                                    const HeadTargets& targets, double beta) {
  const at::Tensor ids = targets.support_ids_Nk.to(at::kLong);
  const at::Tensor y = targets.sampled_ids_N.to(at::kLong).unsqueeze(1);
  const at::Tensor log_p = log_p_all.gather(1, ids);
  const at::Tensor log_q = targets.teacher_log_probs_Nk.to(at::kDouble);
  const at::Tensor log_py = log_p_all.gather(1, y).squeeze(1);
  const at::Tensor ratio = log_py - targets.teacher_sampled_log_probs_N.to(at::kDouble);
  const at::Tensor outside = ids.ne(y).all(1).to(at::kDouble);
  const bool whole = ids.size(1) == log_p_all.size(1);
  const at::Tensor log_p_tail = at::logsumexp(log_p_all.scatter(1, ids, -kInf), 1);
  const at::Tensor log_q_tail = targets.teacher_log_tail_N.to(at::kDouble);
  const at::Tensor zero = at::zeros_like(ratio);
  const at::Tensor tail_ratio = whole ? zero : log_p_tail - log_q_tail;
  const at::Tensor reverse = (log_p.exp() * (log_p - log_q)).sum(1);
  const at::Tensor ta = whole ? reverse : reverse + log_p_tail.exp() * tail_ratio;
  const at::Tensor bar_p = at::log_softmax(log_p, 1);
  const at::Tensor bar_q = at::log_softmax(log_q, 1);
  const at::Tensor normalized = (bar_p.exp() * (bar_p - bar_q)).sum(1);
  const at::Tensor weight = (log_py - log_py.detach()).exp();
  at::Tensor rho = at::ones_like(ratio);
  if (targets.behavior_log_probs_N.defined()) {
    rho = (log_py - targets.behavior_log_probs_N.to(at::kDouble)).exp().detach();
  }
  const auto same = [](const at::Tensor& loss) { return std::make_pair(loss, loss); };
  if (name == "ta_opd") return same(ta);
  if (name == "sc_ta_opd") {
    return same(ta + weight * (outside * rho * (ratio - tail_ratio)).detach());
  }
  if (name == "normalized") return same(normalized);
  if (name == "unnormalized") return same(reverse);
  if (name == "mopd") return same(reverse + log_q.exp().sum(1) - log_p.exp().sum(1));
  if (name == "ema_pg") {
    return same((log_p.exp() * (log_p - log_q).detach()).sum(1) +
                weight * (outside * rho * ratio).detach());
  }
  if (name == "sampled_token") return {rho * ratio, (rho * ratio).detach() * log_py};
  if (name == "sampled_token_k2") return same(rho * ratio * ratio / 2);
  if (name == "sampled_token_k3") return same(rho * (at::expm1(-ratio) + ratio));
  if (name == "vopd") return {rho * ratio, (rho * (ratio - normalized)).detach() * log_py};
  if (name == "forward_kl") return same((bar_q.exp() * (bar_q - bar_p)).sum(1));
  if (name == "forward_kl_tail") {
    const at::Tensor support = (log_q.exp() * (log_q - log_p)).sum(1);
    return same(whole ? support : support - log_q_tail.exp() * tail_ratio);
  }
  if (name == "jsd") {
    at::Tensor p = log_p.exp();
    at::Tensor q = log_q.exp();
    if (!whole) {
      p = at::cat({p, log_p_tail.exp().unsqueeze(1)}, 1);
      q = at::cat({q, log_q_tail.exp().unsqueeze(1)}, 1);
    }
    const at::Tensor m = beta * q + (1 - beta) * p;
    return same((beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()).sum(1));
  }
  if (name == "full") return same(reverse);
  if (name == "entropy_aware") {
    const at::Tensor high = targets.teacher_entropy_N.gt(kEntropyThreshold).to(at::kDouble);
    const at::Tensor forward = high * (bar_q.exp() * (bar_q - bar_p)).sum(1);
    return {rho * ratio + forward, (rho * ratio).detach() * log_py + forward};
  }
  if (name == "cross_entropy") return same(-log_py);
  if (name == "policy_gradient") return same(-weight * rho * targets.advantages_N.to(at::kDouble));
  ADD_FAILURE() << "objective " << name << " has no oracle: write it here";
  return same(zero);
}

struct Expected {
  at::Tensor loss, d_hidden, d_lm_head, log_p;
};

inline Expected Oracle(const Problem& problem, const HeadOptions& options) {
  const at::Tensor hidden = problem.hidden.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor lm_head = problem.lm_head.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor log_p = at::log_softmax(at::mm(hidden, lm_head.t()) / options.temperature, 1);
  const auto [loss, surrogate] = OracleRows(NameOf(options.objective), log_p, problem.targets,
                                            options.objective.term[0].objective.beta);
  const at::Tensor total = (surrogate * problem.targets.row_weights_N.to(at::kDouble)).sum();
  const auto gradients =
      torch::autograd::grad({total}, {hidden, lm_head}, {}, std::nullopt, false, true);
  Expected expected{loss.detach(), gradients[0], gradients[1], log_p.detach()};
  if (!expected.d_hidden.defined()) expected.d_hidden = at::zeros_like(hidden).detach();
  if (!expected.d_lm_head.defined()) expected.d_lm_head = at::zeros_like(lm_head).detach();
  return expected;
}

// Compares losses, metrics and log-probs relative to the largest element, but at least to 1. They
// are differences of log-probs, so their rounding is that of numbers of about this size.
inline void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                        const std::string& what) {
  ExpectRelative(actual, expected, tolerance, what, /*smallest_size=*/1);
}

// The largest value that rounding may leave of a gradient that is exactly zero.
inline constexpr double kZeroGradient = 1e-7;

// Compares gradients relative to the largest element, however small that is. A gradient that is
// missing is an error of 1.
inline void ExpectGradientClose(const at::Tensor& actual, const at::Tensor& expected,
                                double tolerance, const std::string& what) {
  ExpectRelative(actual, expected, tolerance, what, kZeroGradient / tolerance);
}

// Compares the gradient of lm_head in two parts, each relative to its own largest element: the rows
// that are the support or the sampled token of some position, and all others. The others have only
// the dense gradient a p(v), which is orders of magnitude smaller.
inline void ExpectHeadGradientClose(const at::Tensor& actual, const at::Tensor& expected,
                                    const HeadTargets& targets, double tolerance,
                                    const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  at::Tensor ids = targets.sampled_ids_N;
  if (targets.support_ids_Nk.defined()) ids = at::cat({ids, targets.support_ids_Nk.flatten()});
  ids = ids.masked_select(ids.ge(0)).to(at::kLong);
  at::Tensor named_V = at::zeros({expected.size(0)}, at::kBool);
  named_V.index_fill_(0, ids, true);
  for (const bool named : {true, false}) {
    const at::Tensor rows = named_V.eq(named).nonzero().squeeze(1);
    ExpectGradientClose(actual.index_select(0, rows), expected.index_select(0, rows), tolerance,
                        what + (named ? ", entries" : ", dense part"));
  }
}

inline HeadOptions OptionsFor(const std::string& name) {
  HeadOptions options;
  Objective objective = FindObjective(name).value();
  objective.beta = 0.3;
  objective.entropy_threshold = kEntropyThreshold;
  options.objective = objective;
  return options;
}

struct HeadRun {
  HeadOutput output;
  at::Tensor d_lm_head;
};

// Runs the head and returns its results on the CPU. The gradient of lm_head is added to a tensor
// that is `start` everywhere.
inline HeadRun RunHead(const Problem& problem, const HeadOptions& options, float start = 0) {
  const at::Tensor d_lm_head =
      at::full(problem.lm_head.sizes(), start, problem.lm_head.options().dtype(at::kFloat));
  HeadOutput output =
      StudentHead(problem.hidden, problem.lm_head, problem.targets, options, d_lm_head);
  for (at::Tensor* tensor : {&output.loss_N, &output.d_hidden_NH}) *tensor = tensor->cpu();
  return {output, d_lm_head.cpu()};
}

inline void ExpectSameBits(const HeadRun& a, const HeadRun& b) {
  EXPECT_TRUE(at::equal(a.output.loss_N, b.output.loss_N));
  EXPECT_TRUE(at::equal(a.output.metrics_NM, b.output.metrics_NM));
  EXPECT_TRUE(at::equal(a.output.d_hidden_NH, b.output.d_hidden_NH));
  EXPECT_TRUE(at::equal(a.d_lm_head, b.d_lm_head));
}

// Metrics are NaN in the same places.
inline void ExpectMetricsClose(const at::Tensor& actual, const at::Tensor& expected,
                               double tolerance, const std::string& what) {
  EXPECT_TRUE(at::equal(at::isnan(actual), at::isnan(expected))) << what << ": metrics";
  ExpectClose(at::nan_to_num(actual), at::nan_to_num(expected).to(at::kDouble), tolerance,
              what + ": metrics");
}

// Compares the losses and metrics of two runs by one tolerance, and the gradients by another.
inline void ExpectClose(const HeadRun& actual, const HeadRun& expected, const HeadTargets& targets,
                        double tolerance, double gradient_tolerance, const std::string& what) {
  const HeadOutput &a = actual.output, &e = expected.output;
  ExpectClose(a.loss_N, e.loss_N.to(at::kDouble), tolerance, what + ": loss");
  ExpectMetricsClose(a.metrics_NM, e.metrics_NM, tolerance, what);
  ExpectGradientClose(a.d_hidden_NH, e.d_hidden_NH.to(at::kDouble), gradient_tolerance,
                      what + ": d hidden");
  ExpectHeadGradientClose(actual.d_lm_head, expected.d_lm_head.to(at::kDouble), targets,
                          gradient_tolerance, what + ": d lm_head");
}

// Compares the losses of a run of this problem by one tolerance, and the gradients by another.
inline void ExpectMatchesOracle(const HeadRun& run, const Problem& problem,
                                const HeadOptions& options, double tolerance,
                                double gradient_tolerance, const std::string& what) {
  const Expected expected = Oracle(problem, options);
  ExpectClose(run.output.loss_N, expected.loss, tolerance, what + ": loss");
  ExpectGradientClose(run.output.d_hidden_NH, expected.d_hidden, gradient_tolerance,
                      what + ": d hidden");
  ExpectHeadGradientClose(run.d_lm_head, expected.d_lm_head, problem.targets, gradient_tolerance,
                          what + ": d lm_head");
}
inline void ExpectMatchesOracle(const Problem& problem, const HeadOptions& options,
                                const std::string& what) {
  ExpectMatchesOracle(RunHead(problem, options), problem, options, kFloatTolerance, kFloatTolerance,
                      what);
}

}  // namespace taopd::testing
