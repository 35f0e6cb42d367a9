// One row of the student's head on the CPU: logits in, loss and the logits' gradient out, in place.
// Two passes over the row (maximum; exponentials and sums) and one to scale; float32 logits,
// float64 for the O(k) numbers of the objective. Raw pointers, no state; any thread, rows are
// independent.
#pragma once

#include <cstdint>
#include <vector>

#include "taopd/objective.h"
#include "taopd/row_metrics.h"

namespace taopd::cpu {

// What belongs to one row. Null or NaN where the objective does not need it.
struct StudentRowTargets {
  // [k], distinct, each in [0, V); -1 at the end pads a support that is smaller than k.
  const int32_t* support_ids = nullptr;
  const float* teacher_log_probs = nullptr;  // [k]; those of padding are not read
  int32_t k = 0;
  float teacher_log_tail = 0;  // NaN: made from the support's mass (FillTeacherTail)
  int32_t sampled_id = 0;      // in [0, V)
  float teacher_sampled_log_prob = 0;
  float teacher_entropy = 0;
  const float* behavior_log_prob = nullptr;  // null: on-policy
  float weight = 1;
};

struct StudentRowNumbers {
  float loss = 0;  // unweighted
  // False: the gradient is zero but on the support and the sampled token.
  bool dense = true;
  float metrics[kNumHeadMetrics] = {};
};

// Memory that rows share one after the other; one per thread.
struct StudentRowScratch {
  std::vector<double> log_p, log_q, gradient, term_gradient;
  std::vector<float> logits, tile_max;
  std::vector<int32_t> order;
  std::vector<uint8_t> in_top_k;
};

enum class RowStatus {
  kOk,
  kDuplicateSupportId,
  kIdBehindPadding,
  kEmptySupport,       // and an objective needs one
  kIncompleteSupport,  // and an objective needs the whole vocabulary
};

// What is wrong with support_ids, for error messages; "" for kOk.
const char* Describe(RowStatus status);

// logits[V] become weight * d loss / d logits, where the loss is that of softmax(logits /
// temperature). top_k_metrics: also the two columns of the overlap with the student's own top-k.
// REQUIRES: V >= 1, 0 <= k <= V, ids in range or -1, temperature > 0, ProblemOf(objective) is
// empty. When the status is not kOk the row is spoilt.
RowStatus StudentRow(const ObjectiveTerms& objective, double temperature, bool top_k_metrics,
                     const StudentRowTargets& targets, float* logits, int64_t vocabulary_size,
                     StudentRowScratch* scratch, StudentRowNumbers* numbers);

// How many ids come before the padding; -1 when an id stands behind padding.
inline int32_t SupportSize(const int32_t* support_ids, int32_t k) {
  int32_t size = 0;
  while (size < k && support_ids[size] >= 0) ++size;
  for (int32_t j = size; j < k; ++j) {
    if (support_ids[j] >= 0) return -1;
  }
  return size;
}

// kOk, or what a support of that size lacks for objectives with these needs.
inline RowStatus CheckSupportSize(int32_t size, uint32_t needs, int64_t vocabulary_size) {
  if (size < 0) return RowStatus::kIdBehindPadding;
  if ((needs & kNeedsSupport) && size == 0) return RowStatus::kEmptySupport;
  if ((needs & kNeedsFullVocabulary) && size != vocabulary_size) {
    return RowStatus::kIncompleteSupport;
  }
  return RowStatus::kOk;
}

}  // namespace taopd::cpu
