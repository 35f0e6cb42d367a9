#include "kernels/cpu/student_rows.h"

#include <cmath>

#include "kernels/cpu/complement.h"
#include "kernels/cpu/top_k_overlap.h"

namespace taopd::cpu {

const char* Describe(RowStatus status) {
  switch (status) {
    case RowStatus::kOk:
      return "";
    case RowStatus::kDuplicateSupportId:
      return "support_ids holds an id twice in one row";
    case RowStatus::kIdBehindPadding:
      return "support_ids holds an id behind padding (-1) in one row";
    case RowStatus::kEmptySupport:
      return "support_ids has k = 0 in one row; the objective needs a support";
    case RowStatus::kIncompleteSupport:
      return "support_ids is not the whole vocabulary in one row; objective full needs it";
  }
  return "";
}

RowStatus StudentRow(const ObjectiveTerms& objective, double temperature, bool top_k_metrics,
                     const StudentRowTargets& targets, float* logits, int64_t vocabulary_size,
                     StudentRowScratch* scratch, StudentRowNumbers* numbers) {
  const RowMath& math = BestRowMath();
  const int32_t k = SupportSize(targets.support_ids, targets.k);
  const RowStatus status = CheckSupportSize(k, NeedsOf(objective), vocabulary_size);
  if (status != RowStatus::kOk) return status;
  scratch->logits.resize(k);
  scratch->log_p.resize(k);
  scratch->log_q.resize(k);
  scratch->gradient.resize(k);
  if (objective.num_terms > 1) scratch->term_gradient.resize(k);
  double* log_p = scratch->log_p.data();
  double* log_q = scratch->log_q.data();
  const double scale = static_cast<float>(1 / temperature);  // as the loops over the row use it

  // The support leaves the row, so that the rest is the tail; the rest becomes exp(z - shift).
  const double sampled_logit = logits[targets.sampled_id] * scale;
  if (!TakeOut(targets.support_ids, k, logits, scratch->logits.data())) {
    return RowStatus::kDuplicateSupportId;
  }
  float max = 0;
  if (top_k_metrics) {
    const int64_t num_tiles = (vocabulary_size + kTileSize - 1) / kTileSize;
    scratch->tile_max.resize(num_tiles);
    scratch->in_top_k.resize(k);
    math.tile_max(logits, vocabulary_size, scratch->tile_max.data());
    max = math.max(scratch->tile_max.data(), num_tiles);
    MarkStudentTopK(targets.support_ids, scratch->logits.data(), k, logits,
                    scratch->tile_max.data(), vocabulary_size, &scratch->order,
                    scratch->in_top_k.data());
  } else {
    max = math.max(logits, vocabulary_size);
  }
  const PartOfRow tail =
      SumPartBelow(math, max, logits, vocabulary_size, temperature, /*write_exp=*/true);
  for (int32_t j = 0; j < k; ++j) log_p[j] = scratch->logits[j] * scale;
  const double log_sum_exp = LogAddExp(tail.log_sum_exp, LogSumExp(log_p, k));
  const double entropy = EntropyOfParts(tail, log_p, k, log_sum_exp);
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
  row.teacher_entropy = targets.teacher_entropy;
  for (int32_t j = 0; j < k && !row.sampled_in_support; ++j) {
    row.sampled_in_support = targets.support_ids[j] == targets.sampled_id;
  }
  const TeacherTail teacher_tail = FillTeacherTail(&row, k == vocabulary_size);
  ObjectiveResult<double> result;
  result.support_gradient = scratch->gradient.data();
  EvaluateObjectives(objective, row, scratch->term_gradient.data(), &result);

  numbers->loss = static_cast<float>(result.loss);
  WriteRowMetrics(row, result, entropy, teacher_tail, numbers->metrics);
  if (top_k_metrics && k > 0) {
    int32_t overlap = 0;
    for (uint8_t inside : scratch->in_top_k) overlap += inside;
    numbers->metrics[kTopKOverlap] = static_cast<float>(overlap);
    numbers->metrics[kTopKOverlapAdvantage] =
        static_cast<float>(OverlapAdvantage(log_p, log_q, k, scratch->in_top_k.data()));
  }

  // p(v) = exp(z - shift) exp(shift - log_sum_exp); chain rule of z / temperature; the row's
  // weight.
  const double to_logits = targets.weight * scale;
  const double tail_factor = tail.empty ? 0 : std::exp(tail.shift * scale - log_sum_exp);
  const float dense_factor = static_cast<float>(result.a * tail_factor * to_logits);
  numbers->dense = dense_factor != 0;
  math.scale(logits, vocabulary_size, dense_factor);
  for (int32_t j = 0; j < k; ++j) {
    logits[targets.support_ids[j]] = static_cast<float>(result.support_gradient[j] * to_logits);
  }
  if (result.c != 0) logits[targets.sampled_id] += static_cast<float>(result.c * to_logits);
  return RowStatus::kOk;
}

}  // namespace taopd::cpu
