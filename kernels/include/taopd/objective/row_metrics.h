// The metrics that a row of the student's head reports besides its loss, computed from numbers that
// the loss needs anyway. CPU and CUDA code share this source.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"
#include "taopd/objective/objective_row.h"

namespace taopd {

// The columns of a row's metrics. A column is NaN if the caller does not have its input (a teacher,
// a support).
enum HeadMetric : int {
  kStudentTail,      // probability outside of the support under the student
  kTeacherTail,      // the same under the teacher
  kStudentEntropy,   // nats, full vocabulary
  kSampledLogProb,   // log p(y)
  kSampledLogRatio,  // log p(y) - log q(y)
  kSampledOutside,   // 1 if y is not in the support
  kNumLimited,       // log-probs and weights held at a limit of taopd/objective/objective_row.h
  kStudentMass,      // probability of the support under the student
  kTeacherMass,      // the same under the teacher
  kTailWasDerived,   // 1 if the teacher sent no tail, so it was derived from its mass
  kTailWasClamped,   // 1 if the clamp of the paper's listing held that mass below 1
  kRhoTruncated,     // importance ratios held at max_rho
  kRhoMasked,        // importance ratios read as 0 by mask_rho_below or mask_rho_above
  kRhoClipped,       // importance ratios whose gradient clip_low or clip_high left out
  // Cov(pbar, log pbar) - Cov(pbar, log qbar) under pbar. If it is above zero, a step of the
  // normalized objective makes the student's tail grow (paper, proposition 2).
  kTailGrowth,
  // These two are NaN unless top_k_metrics is set: the number of tokens of the support that are
  // also among the student's k most probable, and the mean of q (log p - log q) over those, or 0 if
  // there are none. The paper's code calls the latter the overlap tokens' advantage.
  kTopKOverlap,
  kTopKOverlapAdvantage,
  // kMaxObjectiveTerms columns: the weighted loss of each term, 0 for unused terms.
  kTermLoss,
  kNumHeadMetrics = kTermLoss + kMaxObjectiveTerms,
};

// The operation by which the metric of a step combines a column over the rows of all ranks.
enum class StepValue {
  kNone,  // no metric reports this column alone
  kMean,
  kSum,
};
struct HeadMetricInfo {
  std::string_view name;         // in the results of `taopd-trainer objective`
  std::string_view step_metric;  // in metrics.jsonl; empty with kNone
  StepValue value;
  // The column compares the student with a teacher, so a step without one does not report it.
  bool needs_teacher = true;
};

// The columns before kTermLoss, in their order.
inline constexpr std::array<HeadMetricInfo, kTermLoss> kHeadMetrics = {{
    {"student_tail", "policy/student_tail", StepValue::kMean},
    {"teacher_tail", "policy/teacher_tail", StepValue::kMean},
    {"student_entropy", "policy/entropy", StepValue::kMean, /*needs_teacher=*/false},
    {"sampled_log_prob", "", StepValue::kNone},
    {"sampled_log_ratio", "policy/sampled_log_ratio", StepValue::kMean},
    {"sampled_outside", "policy/sampled_outside", StepValue::kMean},
    {"num_limited", "policy/limited_values", StepValue::kSum},
    {"student_mass", "policy/student_mass", StepValue::kMean},
    {"teacher_mass", "policy/teacher_mass", StepValue::kMean},
    {"tail_was_derived", "policy/derived_tails", StepValue::kSum},
    {"tail_was_clamped", "policy/clamped_tails", StepValue::kSum},
    {"rho_truncated", "policy/truncated_rho", StepValue::kSum, /*needs_teacher=*/false},
    {"rho_masked", "policy/masked_rho", StepValue::kSum, /*needs_teacher=*/false},
    {"rho_clipped", "", StepValue::kNone},  // of rewards
    {"tail_growth", "policy/tail_growth", StepValue::kMean},
    {"top_k_overlap", "", StepValue::kNone},  // a share of the support's size
    {"top_k_overlap_advantage", "", StepValue::kNone},
}};

// Cov_{v ~ pbar}(pbar(v), log pbar(v) - log qbar(v)), where bars mean renormalized on the support.
// q = 0 is read as kLogProbFloor. The result is 0 if the student has no mass on the support.
template <typename Real>
TAOPD_HOST_DEVICE inline Real TailGrowthCovariance(const ObjectiveRow<Real>& row) {
  Real mass = 0;
  for (int32_t j = 0; j < row.k; ++j) mass += row.p[j];
  if (mass == 0) return 0;
  const Real inverse = 1 / mass;
  Real mean_p = 0, mean_r = 0, mean_pr = 0;
  for (int32_t j = 0; j < row.k; ++j) {
    const Real p = row.p[j] * inverse;
    int32_t ignored = 0;
    const Real r = objectives::WeightedLogRatio(row.log_p[j], row.log_q[j], &ignored);
    mean_p += p * p;
    mean_r += p * r;
    mean_pr += p * p * r;
  }
  return mean_pr - mean_p * mean_r;
}

// The mean of q (log p - log q) over the support's tokens with in_student_top_k[j] != 0; 0 if there
// are none. The paper's code passes the log-probs of its loss: renormalized ones for the normalized
// objective, p and q otherwise.
template <typename Real>
TAOPD_HOST_DEVICE inline Real OverlapAdvantage(const Real* log_p, const Real* log_q, const Real* q,
                                               int32_t k, const uint8_t* in_student_top_k) {
  Real sum = 0;
  int32_t num = 0;
  for (int32_t j = 0; j < k; ++j) {
    if (!in_student_top_k[j]) continue;
    ++num;
    if (log_q[j] == NegativeInfinity<Real>()) continue;  // 0 log 0 = 0
    int32_t ignored = 0;
    const Real p = log_p[j] == NegativeInfinity<Real>()
                       ? objectives::FlooredLogProb(log_p[j], &ignored)
                       : log_p[j];
    sum += q[j] * (p - log_q[j]);
  }
  return num == 0 ? Real(0) : sum / static_cast<Real>(num);
}

// Writes all columns. The two of the top-k overlap become NaN; the caller overwrites them if it has
// them. q[k] is exp(log_q), and is not read without a teacher. Metric is float or double.
template <typename Real, typename Metric>
TAOPD_HOST_DEVICE inline void WriteRowMetrics(const ObjectiveRow<Real>& row, const Real* q,
                                              const ObjectiveResult<Real>& result,
                                              Real student_entropy, TeacherTail teacher_tail,
                                              Metric* metrics) {
  constexpr Metric kNan = std::numeric_limits<Metric>::quiet_NaN();
  const bool has_teacher = row.k > 0 && row.log_q != nullptr;
  Real student_mass = 0;
  Real teacher_mass = 0;
  for (int32_t j = 0; j < row.k; ++j) {
    student_mass += row.p[j];
    if (has_teacher) teacher_mass += q[j];
  }
  metrics[kStudentTail] = static_cast<Metric>(std::exp(row.log_p_tail));
  metrics[kTeacherTail] = static_cast<Metric>(std::exp(row.log_q_tail));
  metrics[kStudentEntropy] = static_cast<Metric>(student_entropy);
  metrics[kSampledLogProb] = static_cast<Metric>(row.log_p_sampled);
  metrics[kSampledLogRatio] = static_cast<Metric>(row.log_p_sampled - row.log_q_sampled);
  metrics[kSampledOutside] = row.sampled_in_support ? Metric(0) : Metric(1);
  metrics[kNumLimited] = static_cast<Metric>(result.num_limited);
  metrics[kStudentMass] = static_cast<Metric>(student_mass);
  metrics[kTeacherMass] = has_teacher ? static_cast<Metric>(teacher_mass) : kNan;
  metrics[kTailWasDerived] = teacher_tail == kTailGiven ? Metric(0) : Metric(1);
  metrics[kTailWasClamped] = teacher_tail == kTailClamped ? Metric(1) : Metric(0);
  metrics[kRhoTruncated] = static_cast<Metric>(result.num_truncated);
  metrics[kRhoMasked] = static_cast<Metric>(result.num_masked);
  metrics[kRhoClipped] = static_cast<Metric>(result.num_clipped);
  metrics[kTailGrowth] = has_teacher ? static_cast<Metric>(TailGrowthCovariance(row)) : kNan;
  metrics[kTopKOverlap] = kNan;
  metrics[kTopKOverlapAdvantage] = kNan;
  for (int32_t i = 0; i < kMaxObjectiveTerms; ++i) {
    metrics[kTermLoss + i] = static_cast<Metric>(result.term_loss[i]);
  }
}

}  // namespace taopd
