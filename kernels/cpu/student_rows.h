// One row of the student's head on the CPU: logits in, loss and the logits' gradient out, in place.
// Two passes over the row (maximum; exponentials and sums) and one to scale; float32 logits,
// float64 for the O(k) numbers of the objective. Raw pointers, no state; any thread, rows are
// independent.
#pragma once

#include <cstdint>
#include <vector>

#include "taopd/objective.h"

namespace taopd::cpu {

// What belongs to one row. Null or NaN where the objective does not need it.
struct StudentRowTargets {
  const int32_t* support_ids = nullptr;      // [k], each in [0, V)
  const float* teacher_log_probs = nullptr;  // [k]
  int32_t k = 0;
  float teacher_log_tail = 0;
  int32_t sampled_id = 0;  // in [0, V)
  float teacher_sampled_log_prob = 0;
  const float* behavior_log_prob = nullptr;  // null: on-policy
  float weight = 1;
};

struct StudentRowNumbers {
  float loss = 0;  // unweighted
  float log_tail = 0;
  float entropy = 0;  // nats, of the full distribution
  float sampled_log_prob = 0;
  bool sampled_in_support = false;
  int32_t num_limited = 0;  // see ObjectiveResult
};

// Memory that rows share one after the other; one per thread.
struct StudentRowScratch {
  std::vector<double> log_p, log_q, gradient;
  std::vector<float> logits;
};

enum class RowStatus { kOk, kDuplicateSupportId };

// logits[V] become weight * d loss / d logits, where the loss is that of softmax(logits /
// temperature). REQUIRES: V >= 1, 0 <= k <= V, ids in range, temperature > 0. On
// kDuplicateSupportId the row is spoilt.
RowStatus StudentRow(const Objective& objective, double temperature,
                     const StudentRowTargets& targets, float* logits, int64_t vocabulary_size,
                     StudentRowScratch* scratch, StudentRowNumbers* numbers);

}  // namespace taopd::cpu
