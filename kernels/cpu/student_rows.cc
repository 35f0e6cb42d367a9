#include "kernels/cpu/student_rows.h"

#include <cmath>

#include "kernels/cpu/complement.h"

namespace taopd::cpu {

RowStatus StudentRow(const Objective& objective, double temperature,
                     const StudentRowTargets& targets, float* logits, int64_t vocabulary_size,
                     StudentRowScratch* scratch, StudentRowNumbers* numbers) {
  const RowMath& math = BestRowMath();
  const int32_t k = targets.k;
  scratch->logits.resize(k);
  scratch->log_p.resize(k);
  scratch->log_q.resize(k);
  scratch->gradient.resize(k);
  double* log_p = scratch->log_p.data();
  double* log_q = scratch->log_q.data();
  const double scale = static_cast<float>(1 / temperature);  // as the loops over the row use it

  // The support leaves the row, so that the rest is the tail; the rest becomes exp(z - shift).
  const double sampled_logit = logits[targets.sampled_id] * scale;
  if (!TakeOut(targets.support_ids, k, logits, scratch->logits.data())) {
    return RowStatus::kDuplicateSupportId;
  }
  const PartOfRow tail = SumPart(math, logits, vocabulary_size, temperature, /*write_exp=*/true);
  for (int32_t j = 0; j < k; ++j) log_p[j] = scratch->logits[j] * scale;
  const double log_sum_exp = LogAddExp(tail.log_sum_exp, LogSumExp(log_p, k));
  numbers->entropy = static_cast<float>(EntropyOfParts(tail, log_p, k, log_sum_exp));
  for (int32_t j = 0; j < k; ++j) {
    log_p[j] -= log_sum_exp;
    log_q[j] = targets.teacher_log_probs[j];
  }

  ObjectiveRow<double> row;
  row.k = k;
  row.log_p = log_p;
  row.log_q = log_q;
  row.log_p_tail = tail.log_sum_exp - log_sum_exp;
  row.log_q_tail = targets.teacher_log_tail;
  row.log_p_sampled = sampled_logit - log_sum_exp;
  row.log_q_sampled = targets.teacher_sampled_log_prob;
  row.log_behavior_sampled =
      targets.behavior_log_prob != nullptr ? *targets.behavior_log_prob : row.log_p_sampled;
  for (int32_t j = 0; j < k && !row.sampled_in_support; ++j) {
    row.sampled_in_support = targets.support_ids[j] == targets.sampled_id;
  }
  ObjectiveResult<double> result;
  result.support_gradient = scratch->gradient.data();
  EvaluateObjective(objective, row, &result);

  numbers->loss = static_cast<float>(result.loss);
  numbers->log_tail = static_cast<float>(row.log_p_tail);
  numbers->sampled_log_prob = static_cast<float>(row.log_p_sampled);
  numbers->sampled_in_support = row.sampled_in_support;
  numbers->num_limited = result.num_limited;

  // p(v) = exp(z - shift) exp(shift - log_sum_exp); chain rule of z / temperature; the row's
  // weight.
  const double to_logits = targets.weight * scale;
  const double tail_factor = tail.empty ? 0 : std::exp(tail.shift * scale - log_sum_exp);
  math.scale(logits, vocabulary_size, static_cast<float>(result.a * tail_factor * to_logits));
  for (int32_t j = 0; j < k; ++j) {
    logits[targets.support_ids[j]] = static_cast<float>(result.support_gradient[j] * to_logits);
  }
  if (result.c != 0) logits[targets.sampled_id] += static_cast<float>(result.c * to_logits);
  return RowStatus::kOk;
}

}  // namespace taopd::cpu
