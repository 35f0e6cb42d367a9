// From the sums over one row of logits to loss, metrics and the factors of the logits' gradient:
// the O(k) part of the student's head, the same source for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/head/complement_sums.h"
#include "taopd/objective/log_math.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// What one row brings. Pointers are null, numbers NaN, where the caller has none.
struct StudentRowInput {
  ComplementSums rest;
  double scale = 1;                          // 1 / temperature, as the sums used it
  const float* taken = nullptr;              // [k] logits of the support
  float sampled_logit = 0;                   // of y
  const int32_t* ids = nullptr;              // [k], without padding
  const float* teacher_log_probs = nullptr;  // [k]
  int32_t k = 0;
  bool whole_vocabulary = false;  // k = V
  int32_t sampled_id = 0;
  float teacher_log_tail = 0;
  float teacher_sampled_log_prob = 0;
  float teacher_entropy = 0;
  const float* behavior_log_prob = nullptr;  // null: on-policy
  const uint8_t* in_top_k = nullptr;         // [k]; null: the two overlap metrics are NaN
};

// d loss / d z_v = support_gradient_j on the support, dense exp((z_v - reference) scale) elsewhere,
// and sampled_gradient added at y. (Not yet times the row's weight.)
struct StudentRowGradient {
  double loss = 0;
  double dense = 0;
  double sampled = 0;
  int32_t sampled_index = -1;  // y's index in the support, or -1
};

// log_p, log_q, support_gradient and scratch are the caller's [k] (scratch is read only by
// combinations of objectives). metrics: kNumHeadMetrics columns.
TAOPD_HOST_DEVICE inline StudentRowGradient FinishStudentRow(const ObjectiveTerms& objective,
                                                             const StudentRowInput& input,
                                                             double* log_p, double* log_q,
                                                             double* support_gradient,
                                                             double* scratch, float* metrics) {
  const double tail = LogSumOf(input.rest, input.scale);
  for (int32_t j = 0; j < input.k; ++j) log_p[j] = input.taken[j] * input.scale;
  const double log_sum_exp = LogAddExp(tail, LogSumExp(log_p, input.k));
  StudentRowGradient out;
  for (int32_t j = 0; j < input.k; ++j) {
    log_p[j] -= log_sum_exp;
    log_q[j] = input.teacher_log_probs[j];
    if (input.ids[j] == input.sampled_id) out.sampled_index = j;
  }
  ObjectiveRow<double> row;
  row.k = input.k;
  row.log_p = log_p;
  row.log_q = log_q;
  row.log_p_tail = tail - log_sum_exp;
  row.log_q_tail = input.teacher_log_tail;
  row.log_p_sampled = input.sampled_logit * input.scale - log_sum_exp;
  row.log_q_sampled = input.teacher_sampled_log_prob;
  row.log_behavior_sampled =
      input.behavior_log_prob != nullptr ? *input.behavior_log_prob : row.log_p_sampled;
  row.teacher_entropy = input.teacher_entropy;
  row.sampled_in_support = out.sampled_index >= 0;
  const TeacherTail teacher_tail = FillTeacherTail(&row, input.whole_vocabulary);
  ObjectiveResult<double> result;
  result.support_gradient = support_gradient;
  EvaluateObjectives(objective, row, scratch, &result);

  const double entropy =
      EntropyOfRow(input.rest, input.scale, row.log_p_tail, log_sum_exp, log_p, input.k);
  WriteRowMetrics(row, result, entropy, teacher_tail, metrics);
  if (input.in_top_k != nullptr && input.k > 0) {
    int32_t overlap = 0;
    for (int32_t j = 0; j < input.k; ++j) overlap += input.in_top_k[j];
    metrics[kTopKOverlap] = static_cast<float>(overlap);
    metrics[kTopKOverlapAdvantage] =
        static_cast<float>(OverlapAdvantage(log_p, log_q, input.k, input.in_top_k));
  }

  out.loss = result.loss;
  for (int32_t j = 0; j < input.k; ++j) support_gradient[j] *= input.scale;
  out.sampled = result.c * input.scale;
  out.dense = input.rest.sum == 0 ? 0
                                  : result.a * input.scale *
                                        std::exp(input.rest.reference * input.scale - log_sum_exp);
  return out;
}

// The number by which a row of exponentials is multiplied. Not the dense factor alone: the entries
// are divided by it, and where the dense factor is tiny or zero beside them they would overflow.
// Raising it to 2^-24 of the largest entry over the exponentials' sum adds a dense gradient of less
// than 6e-8 of that entry.
TAOPD_HOST_DEVICE inline double RowScale(double dense, double largest_entry, double sum) {
  const double smallest = std::ldexp(largest_entry, -24) / (sum > 1 ? sum : 1.0);
  if (!(std::fabs(dense) < smallest)) return dense;  // a NaN stays
  return dense < 0 ? -smallest : smallest;
}

// The gradient of a row's logits, times its weight, as the matrix products of the heads take it:
// scale * e_v with e_v = exp((z_v - reference) scale), but for up to k + 1 entries, whose e_v is in
// values[k + 1] under its id in ids[k + 1] (-1: none): the support, and y where it is outside of it
// and has a gradient of its own. `support_gradient` is FinishStudentRow's, spoilt after. Returns
// the scale. with_dense = false: e_v is 0 but for the entries, and the scale is 1.
TAOPD_HOST_DEVICE inline float WriteRowEntries(const StudentRowInput& input,
                                               const StudentRowGradient& row, double weight,
                                               bool with_dense, int32_t k, double* support_gradient,
                                               int32_t* ids, float* values) {
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
    // A gradient below the smallest normal float32: the row has none.
    if (std::fabs(scale) < kSmallestNormal) scale = 0;
  }
  const double inverse = scale == 0 ? 0 : weight / scale;
  for (int32_t j = 0; j < k; ++j) {
    ids[j] = j < input.k ? input.ids[j] : -1;
    values[j] = j < input.k ? static_cast<float>(support_gradient[j] * inverse) : 0;
  }
  // y outside of the support: its share of the dense part and the sampled token's own.
  const double x = (static_cast<double>(input.sampled_logit) - input.rest.reference) * input.scale;
  const double dense_y = with_dense && scale != 0 ? dense / scale * std::exp(x) : 0;
  const bool outside = row.sampled_index < 0 && row.sampled != 0;
  ids[k] = outside ? input.sampled_id : -1;
  values[k] = outside ? static_cast<float>(dense_y + row.sampled * inverse) : 0;
  return scale;
}

}  // namespace taopd
