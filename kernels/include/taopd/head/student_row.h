// The O(k) part of the student's head: from the sums over one row of logits to the loss, the
// metrics and the factors of the gradient with respect to the logits. CPU and CUDA code share this
// source.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "taopd/base/host_device.h"
#include "taopd/head/complement_sums.h"
#include "taopd/head/student_targets.h"
#include "taopd/objective/log_math.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// The inputs of one row. Pointers are null, and numbers are NaN, where the caller has none.
struct StudentRowInput {
  // The sums over the row without its support.
  ComplementSums rest;
  double scale = 1;                          // 1 / temperature, as the sums used it
  const float* support_logits = nullptr;     // [k]
  float sampled_logit = 0;                   // logit of y
  const int32_t* ids = nullptr;              // [k], without padding
  const float* teacher_log_probs = nullptr;  // [k]
  int32_t k = 0;
  bool whole_vocabulary = false;  // k = V
  int32_t sampled_id = 0;
  float teacher_log_tail = 0;
  float teacher_sampled_log_prob = 0;
  float teacher_entropy = 0;
  const float* behavior_log_prob = nullptr;  // null: on-policy
  float advantage = 0;
  // [k], whether the student has the id among its own k most probable. Null: the two overlap
  // metrics are NaN.
  const uint8_t* in_top_k = nullptr;
};

// Fills in what the targets say about row n, whose support has `size` ids before the padding.
TAOPD_HOST_DEVICE inline void SetTargets(const StudentTargets& targets, int64_t n, int32_t size,
                                         int64_t vocab_size, StudentRowInput* input) {
  const auto value_or_nan = [n](const float* values) {
    return values != nullptr ? values[n] : std::numeric_limits<float>::quiet_NaN();
  };
  input->ids = RowsFrom(targets.support_ids_Nk, n, targets.k);
  input->teacher_log_probs = RowsFrom(targets.teacher_log_probs_Nk, n, targets.k);
  input->k = size;
  input->whole_vocabulary = size == vocab_size;
  input->sampled_id = targets.sampled_ids_N[n];
  input->teacher_log_tail = value_or_nan(targets.teacher_log_tail_N);
  input->teacher_sampled_log_prob = value_or_nan(targets.teacher_sampled_log_probs_N);
  input->teacher_entropy = value_or_nan(targets.teacher_entropy_N);
  input->advantage = value_or_nan(targets.advantages_N);
  input->behavior_log_prob = RowsFrom(targets.behavior_log_probs_N, n);
}

// The gradient of a row's loss with respect to its logits, not yet times the row's weight:
// d loss / d z_v is support_gradient[j] at the support's id s_j and
// dense exp((z_v - reference) scale) at every other id, plus `sampled` at y.
struct StudentRowGradient {
  double loss = 0;
  double dense = 0;
  double sampled = 0;
  int32_t sampled_index = -1;          // y's index in the support, or -1
  double* support_gradient = nullptr;  // [k], in the work memory of FinishStudentRow
};

// Size of the work memory of FinishStudentRow, in doubles per id of the support.
inline constexpr int64_t kStudentRowWork = 5;

// Evaluates the objective for one row. Writes metrics[kNumHeadMetrics]. work[kStudentRowWork * k]
// is the caller's memory; the result's support_gradient points into it. exp_of is that of Softmax.
template <typename ExpOf = LoopOfExp>
TAOPD_HOST_DEVICE inline StudentRowGradient FinishStudentRow(const ObjectiveTerms& objective,
                                                             const StudentRowInput& input,
                                                             double* work, float* metrics,
                                                             ExpOf exp_of = {}) {
  double *const log_p = work, *const log_q = work + input.k, *const p = work + 2 * input.k;
  const double tail = LogSumOf(input.rest, input.scale);
  for (int32_t j = 0; j < input.k; ++j) log_p[j] = input.support_logits[j] * input.scale;
  const double log_support = Softmax(log_p, input.k, p, exp_of);
  const double log_sum_exp = LogAddExp(tail, log_support);
  const double support_mass = std::exp(log_support - log_sum_exp);
  StudentRowGradient out;
  out.support_gradient = work + 3 * input.k;
  for (int32_t j = 0; j < input.k; ++j) {
    log_p[j] -= log_sum_exp;
    p[j] *= support_mass;
    log_q[j] = input.teacher_log_probs[j];
    if (input.ids[j] == input.sampled_id) out.sampled_index = j;
  }
  ObjectiveRow<double> row;
  row.k = input.k;
  row.log_p = log_p;
  row.p = p;
  row.log_q = log_q;
  row.log_p_tail = tail - log_sum_exp;
  row.log_q_tail = input.teacher_log_tail;
  row.log_p_sampled = input.sampled_logit * input.scale - log_sum_exp;
  row.log_q_sampled = input.teacher_sampled_log_prob;
  row.log_behavior_sampled =
      input.behavior_log_prob != nullptr ? *input.behavior_log_prob : row.log_p_sampled;
  row.teacher_entropy = input.teacher_entropy;
  row.advantage = input.advantage;
  row.sampled_in_support = out.sampled_index >= 0;
  const TeacherTail teacher_tail = FillTeacherTail(&row, input.whole_vocabulary);
  ObjectiveResult<double> result;
  result.support_gradient = out.support_gradient;
  double* const scratch = work + 4 * input.k;
  EvaluateObjectives(objective, row, scratch, &result);

  double* const q = scratch;
  exp_of(log_q, input.k, q);
  const double entropy =
      EntropyOfRow(input.rest, input.scale, row.log_p_tail, log_sum_exp, log_p, p, input.k);
  WriteRowMetrics(row, q, result, entropy, teacher_tail, metrics);
  if (input.in_top_k != nullptr && input.k > 0) {
    int32_t overlap = 0;
    for (int32_t j = 0; j < input.k; ++j) overlap += input.in_top_k[j];
    metrics[kTopKOverlap] = static_cast<float>(overlap);
    metrics[kTopKOverlapAdvantage] =
        static_cast<float>(OverlapAdvantage(log_p, log_q, q, input.k, input.in_top_k));
  }

  out.loss = result.loss;
  for (int32_t j = 0; j < input.k; ++j) out.support_gradient[j] *= input.scale;
  out.sampled = result.c * input.scale;
  out.dense = input.rest.sum == 0 ? 0
                                  : result.a * input.scale *
                                        std::exp(input.rest.reference * input.scale - log_sum_exp);
  return out;
}

// Returns the number by which a row of exponentials is multiplied. It is the dense factor, unless
// that is so small compared with the largest entry that the entries, which are divided by it, would
// overflow. In that case it is 2^-24 of the largest entry over the sum of the exponentials, which
// adds a dense gradient of less than 6e-8 of that entry.
TAOPD_HOST_DEVICE inline double RowScale(double dense, double largest_entry, double sum) {
  const double smallest = largest_entry * 0x1p-24 / (sum > 1 ? sum : 1.0);
  if (!(std::fabs(dense) < smallest)) return dense;  // a NaN stays
  return dense < 0 ? -smallest : smallest;
}

// Writes the gradient of a row's logits, times the row's weight, in the form that the heads' matrix
// products take, and returns its scale: the gradient at v is scale * e_v.
//
// e_v is exp((z_v - reference) scale), which the caller has, except for up to k + 1 entries: the
// support, and y if it is outside of the support and has a gradient of its own. Entry i has its id
// in ids[i], or -1 if there is no such entry, and its e_v in values[i]; both arrays have k + 1
// places.
//
// If with_dense is false, e_v is 0 except for the entries, and the scale is 1. The contents of
// row.support_gradient are overwritten.
TAOPD_HOST_DEVICE inline float WriteRowEntries(const StudentRowInput& input,
                                               const StudentRowGradient& row, double weight,
                                               bool with_dense, int32_t k, int32_t* ids,
                                               float* values) {
  double* const support_gradient = row.support_gradient;
  if (row.sampled_index >= 0) support_gradient[row.sampled_index] += row.sampled;
  double largest = row.sampled_index >= 0 ? 0 : std::fabs(row.sampled * weight);
  for (int32_t j = 0; j < input.k; ++j) {
    const double size = std::fabs(support_gradient[j] * weight);
    largest = size > largest ? size : largest;
  }
  const double dense = row.dense * weight;
  float scale = 1;
  if (with_dense) {
    constexpr float kSmallestNormal = 1.17549435e-38f;
    scale = static_cast<float>(RowScale(dense, largest, input.rest.sum));
    // The gradient is below the smallest normal float32: it counts as zero.
    if (std::fabs(scale) < kSmallestNormal) scale = 0;
  }
  const double inverse = scale == 0 ? 0 : weight / scale;
  for (int32_t j = 0; j < k; ++j) {
    ids[j] = j < input.k ? input.ids[j] : -1;
    values[j] = j < input.k ? static_cast<float>(support_gradient[j] * inverse) : 0;
  }
  ids[k] = -1;
  values[k] = 0;
  if (row.sampled_index >= 0 || row.sampled == 0) return scale;
  // y is outside of the support: its part of the dense gradient plus the sampled token's own.
  const double x = (static_cast<double>(input.sampled_logit) - input.rest.reference) * input.scale;
  const double dense_y = with_dense && scale != 0 ? dense / scale * std::exp(x) : 0;
  ids[k] = input.sampled_id;
  values[k] = static_cast<float>(dense_y + row.sampled * inverse);
  return scale;
}

}  // namespace taopd
