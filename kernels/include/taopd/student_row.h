// From the sums over one row of logits to loss, metrics and the factors of the logits' gradient:
// the O(k) part of the student's head, the same source for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/host_device.h"
#include "taopd/log_math.h"
#include "taopd/objective.h"
#include "taopd/row_metrics.h"

namespace taopd {

// log-sum-exp over the complement of the support from sum = sum_v exp((z_v - reference) scale), and
// the mean of scale * z under the complement's own softmax from sum_x, the same sum with a factor
// (z_v - reference) scale.
struct ComplementSums {
  double reference = 0;  // finite
  double sum = 0;
  double sum_x = 0;
};

// Entropy in nats of a row: lse - sum_v p_v z_v, in two parts. log_p[k] is of the full softmax.
TAOPD_HOST_DEVICE inline double EntropyOfRow(const ComplementSums& rest, double scale,
                                             double log_p_tail, double log_sum_exp,
                                             const double* log_p, int32_t k) {
  double entropy = 0;
  if (rest.sum != 0) {
    const double mean_logit = rest.reference * scale + rest.sum_x / rest.sum;
    entropy += std::exp(log_p_tail) * (log_sum_exp - mean_logit);
  }
  for (int32_t j = 0; j < k; ++j) {
    if (log_p[j] != NegativeInfinity<double>()) entropy -= std::exp(log_p[j]) * log_p[j];
  }
  return entropy < 0 ? 0 : entropy;  // rounding of a one-point distribution; a NaN stays
}

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
  const double tail = input.rest.sum == 0
                          ? NegativeInfinity<double>()
                          : input.rest.reference * input.scale + std::log(input.rest.sum);
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

}  // namespace taopd
