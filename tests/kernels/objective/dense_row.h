// An oracle for the objectives: dense logits and a dense teacher, from which plain sums compute the
// O(k) numbers, and the dense gradient that an ObjectiveResult represents.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "taopd/objective/objective.h"

namespace taopd::testing {

template <typename Real>
std::vector<Real> LogSoftmax(const std::vector<Real>& z) {
  const Real total = LogSumExp(z.data(), static_cast<int32_t>(z.size()));
  std::vector<Real> log_p(z);
  for (Real& x : log_p) x -= total;
  return log_p;
}

// The student over the whole vocabulary, and the teacher's numbers for the row.
template <typename Real>
struct DenseRow {
  std::vector<Real> logits;      // [V]
  std::vector<int32_t> support;  // [k]
  std::vector<Real> teacher;     // [k], log q on the support
  Real teacher_tail = 0;
  int32_t sampled = 0;
  Real teacher_sampled = 0;
  Real log_behavior = 0;
  bool off_policy = false;
  Real teacher_entropy = 1;
  Real advantage = Real(0.7);

  bool Inside(int32_t v) const {
    return std::find(support.begin(), support.end(), v) != support.end();
  }
};

template <typename Real>
struct DenseResult {
  Real loss = 0;
  std::vector<Real> gradient;  // [V]
  int32_t num_limited = 0;
  int32_t num_truncated = 0;
  int32_t num_masked = 0;
  int32_t num_clipped = 0;
  std::vector<Real> term_loss;  // [kMaxObjectiveTerms]
};

// If student_epsilon > 0, the student's tail is log1mexp of its clamped mass, as in the paper's
// listing.
template <typename Real>
DenseResult<Real> Evaluate(const ObjectiveTerms& objective, const DenseRow<Real>& dense,
                           Real student_epsilon = 0) {
  const std::vector<Real> log_p_all = LogSoftmax(dense.logits);
  std::vector<Real> log_p, p, rest, gradient(dense.support.size());
  for (int32_t id : dense.support) {
    log_p.push_back(log_p_all[id]);
    p.push_back(std::exp(log_p.back()));
  }
  for (int32_t v = 0; v < static_cast<int32_t>(log_p_all.size()); ++v) {
    if (!dense.Inside(v)) rest.push_back(log_p_all[v]);
  }
  ObjectiveRow<Real> row;
  row.k = static_cast<int32_t>(log_p.size());
  row.log_p = log_p.data();
  row.p = p.data();
  row.log_q = dense.teacher.data();
  row.log_p_tail = LogSumExp(rest.data(), static_cast<int32_t>(rest.size()));
  if (student_epsilon > 0) {
    bool clamped = false;
    row.log_p_tail = LogTailFromLogMass(LogSumExp(log_p.data(), row.k), student_epsilon, &clamped);
  }
  row.log_q_tail = dense.teacher_tail;
  row.log_p_sampled = log_p_all[dense.sampled];
  row.log_q_sampled = dense.teacher_sampled;
  row.log_behavior_sampled = dense.off_policy ? dense.log_behavior : row.log_p_sampled;
  row.sampled_in_support = dense.Inside(dense.sampled);
  row.teacher_entropy = dense.teacher_entropy;
  row.advantage = dense.advantage;
  ObjectiveResult<Real> result = {.loss = 7, .a = 7, .c = 7};  // overwritten
  result.support_gradient = gradient.data();
  std::vector<Real> scratch(row.k);
  EvaluateObjectives(objective, row, scratch.data(), &result);

  DenseResult<Real> out;
  out.loss = result.loss;
  out.num_limited = result.num_limited;
  out.num_truncated = result.num_truncated;
  out.num_masked = result.num_masked;
  out.num_clipped = result.num_clipped;
  out.term_loss.assign(result.term_loss, result.term_loss + kMaxObjectiveTerms);
  for (Real x : log_p_all) out.gradient.push_back(result.a * std::exp(x));
  for (int32_t j = 0; j < row.k; ++j) out.gradient[dense.support[j]] = gradient[j];
  out.gradient[dense.sampled] += result.c;
  return out;
}

// Returns the ids of the k largest numbers; ties go to the lower id.
template <typename Real>
std::vector<int32_t> Largest(const std::vector<Real>& numbers, int32_t k) {
  std::vector<int32_t> order(numbers.size());
  for (std::size_t v = 0; v < order.size(); ++v) order[v] = static_cast<int32_t>(v);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t x, int32_t y) { return numbers[x] > numbers[y]; });
  order.resize(k);
  return order;
}

// Returns the numbers that a real teacher would send, from a dense teacher, for any support.
template <typename Real>
DenseRow<Real> MakeRowOn(const std::vector<int32_t>& support, const std::vector<Real>& logits,
                         const std::vector<Real>& log_q_all, int32_t sampled) {
  DenseRow<Real> dense;
  dense.logits = logits;
  dense.support = support;
  for (int32_t id : support) dense.teacher.push_back(log_q_all[id]);
  std::vector<Real> rest;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    if (!dense.Inside(static_cast<int32_t>(v))) rest.push_back(log_q_all[v]);
  }
  dense.teacher_tail = LogSumExp(rest.data(), static_cast<int32_t>(rest.size()));
  dense.sampled = sampled;
  dense.teacher_sampled = log_q_all[sampled];
  dense.teacher_entropy = 0;
  for (Real x : log_q_all) dense.teacher_entropy -= std::exp(x) * x;
  return dense;
}

// Does the same for the teacher's k most probable ids.
template <typename Real>
DenseRow<Real> MakeRow(const std::vector<Real>& logits, const std::vector<Real>& log_q_all,
                       int32_t k, int32_t sampled) {
  return MakeRowOn(Largest(log_q_all, k), logits, log_q_all, sampled);
}

inline std::vector<double> RandomLogits(int32_t vocab_size, double scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> logits(vocab_size);
  for (double& z : logits) z = normal(random);
  return logits;
}

}  // namespace taopd::testing
