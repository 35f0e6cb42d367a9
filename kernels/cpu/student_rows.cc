#include "kernels/cpu/student_rows.h"

#include "kernels/cpu/complement.h"
#include "kernels/cpu/top_k_overlap.h"
#include "taopd/student_row.h"

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

  StudentRowInput input;
  input.scale = static_cast<float>(1 / temperature);  // as the loops over the row use it
  input.sampled_logit = logits[targets.sampled_id];
  // The support leaves the row, so that the rest is the tail; the rest becomes exp(z - reference).
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
    input.in_top_k = scratch->in_top_k.data();
  } else {
    max = math.max(logits, vocabulary_size);
  }
  input.rest = SumBelow(math, max, logits, vocabulary_size, static_cast<float>(input.scale),
                        /*write_exp=*/true);
  input.taken = scratch->logits.data();
  input.ids = targets.support_ids;
  input.teacher_log_probs = targets.teacher_log_probs;
  input.k = k;
  input.whole_vocabulary = k == vocabulary_size;
  input.sampled_id = targets.sampled_id;
  input.teacher_log_tail = targets.teacher_log_tail;
  input.teacher_sampled_log_prob = targets.teacher_sampled_log_prob;
  input.teacher_entropy = targets.teacher_entropy;
  input.behavior_log_prob = targets.behavior_log_prob;
  const StudentRowGradient gradient =
      FinishStudentRow(objective, input, scratch->log_p.data(), scratch->log_q.data(),
                       scratch->gradient.data(), scratch->term_gradient.data(), numbers->metrics);
  numbers->loss = static_cast<float>(gradient.loss);

  const float dense = static_cast<float>(gradient.dense * targets.weight);
  numbers->dense = dense != 0;
  math.scale(logits, vocabulary_size, dense);
  for (int32_t j = 0; j < k; ++j) {
    logits[targets.support_ids[j]] = static_cast<float>(scratch->gradient[j] * targets.weight);
  }
  if (gradient.sampled != 0) {
    logits[targets.sampled_id] += static_cast<float>(gradient.sampled * targets.weight);
  }
  return RowStatus::kOk;
}

}  // namespace taopd::cpu
