// One row of the student's head in float64, by plain loops over logits[V]: the reference for tests,
// for `taopd-trainer objective` and for the bandit, where accuracy matters and time does not. It
// keeps the contract of the heads. The functions keep no state; any thread may call them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "taopd/head/row_support.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd::cpu {

struct DenseRow {
  std::vector<double> logits;             // [V]
  std::vector<int32_t> support_ids;       // [k], distinct, each in [0, V)
  std::vector<double> teacher_log_probs;  // [k]
  // If NaN, it is derived from the support's mass (FillTeacherTail).
  double teacher_log_tail = std::numeric_limits<double>::quiet_NaN();
  int32_t sampled_id = 0;  // in [0, V)
  double teacher_sampled_log_prob = std::numeric_limits<double>::quiet_NaN();
  double teacher_entropy = std::numeric_limits<double>::quiet_NaN();
  std::optional<double> behavior_log_prob;  // absent: on-policy
  double advantage = std::numeric_limits<double>::quiet_NaN();
};

struct DenseRowResult {
  double loss = 0;
  std::vector<double> gradient;  // [V], d loss / d logits
  std::array<double, kNumHeadMetrics> metrics = {};
};

// Evaluates the objective, its gradient and the metrics for one row. If the status is not kOk,
// *result is unspecified. REQUIRES: V >= 1, ids are in range, there are as many teacher_log_probs
// as support_ids, and ProblemOf(objective) is empty.
RowStatus EvaluateDenseRow(const ObjectiveTerms& objective, const DenseRow& row,
                           DenseRowResult* result);

// Returns log(softmax(logits)).
std::vector<double> LogSoftmax(const std::vector<double>& logits);

// Returns the ids of the k largest numbers, in descending order; ties go to the lower id. REQUIRES:
// 0 <= k <= size, and no number is NaN.
std::vector<int32_t> LargestIds(const std::vector<double>& numbers, int32_t k);

}  // namespace taopd::cpu
