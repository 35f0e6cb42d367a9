// The targets of the student's head: the teacher's numbers, the sampled tokens and the rows'
// weights, as raw pointers. The CPU and the CUDA head take the same struct.
//
// Shapes: N rows (response positions), k support size, V vocabulary. Arrays are contiguous, belong
// to the caller, and are in the memory of the device that computes the head.
#pragma once

#include <cstdint>

#include "taopd/base/host_device.h"

namespace taopd {

// sampled_ids_N and row_weights_N are always needed. Any other pointer may be null if the objective
// does not need it (ObjectiveTraits in taopd/objective/objective.h); the metrics that read it are
// then NaN.
struct StudentTargets {
  // int32 [N, k], distinct within a row, each in [0, V). -1 at the end of a row is padding and
  // makes the support of that row smaller than k.
  const int32_t* support_ids_Nk = nullptr;
  // [N, k], log q on the support; -inf is allowed. Not read where the id is padding.
  const float* teacher_log_probs_Nk = nullptr;
  int32_t k = 0;
  // [N], log of q outside of the support; -inf is allowed. Where it is NaN, or null, the tail is
  // derived from the support's mass (FillTeacherTail in taopd/objective/objective_row.h).
  const float* teacher_log_tail_N = nullptr;
  // int32 [N], y, in [0, V).
  const int32_t* sampled_ids_N = nullptr;
  // [N], log q(y).
  const float* teacher_sampled_log_probs_N = nullptr;
  // [N], entropy of the teacher's whole distribution in nats.
  const float* teacher_entropy_N = nullptr;
  // [N], log of y's probability when it was drawn; NaN where the policy that wrote y is unknown.
  // Null if the current policy sampled the batch.
  const float* behavior_log_probs_N = nullptr;
  // [N], the advantage of y's response.
  const float* advantages_N = nullptr;
  // [N], w; the total loss is sum_n w_n loss_n.
  const float* row_weights_N = nullptr;
};

// Returns the pointer to row `row` of an array of `columns` columns; null stays null.
template <typename T>
TAOPD_HOST_DEVICE constexpr T* RowsFrom(T* rows, int64_t row, int64_t columns = 1) {
  return rows == nullptr ? nullptr : rows + row * columns;
}

// Returns the targets of the rows from `row` on.
TAOPD_HOST_DEVICE inline StudentTargets RowsFrom(const StudentTargets& targets, int64_t row) {
  StudentTargets rest = targets;
  rest.support_ids_Nk = RowsFrom(targets.support_ids_Nk, row, targets.k);
  rest.teacher_log_probs_Nk = RowsFrom(targets.teacher_log_probs_Nk, row, targets.k);
  rest.teacher_log_tail_N = RowsFrom(targets.teacher_log_tail_N, row);
  rest.sampled_ids_N = RowsFrom(targets.sampled_ids_N, row);
  rest.teacher_sampled_log_probs_N = RowsFrom(targets.teacher_sampled_log_probs_N, row);
  rest.teacher_entropy_N = RowsFrom(targets.teacher_entropy_N, row);
  rest.behavior_log_probs_N = RowsFrom(targets.behavior_log_probs_N, row);
  rest.advantages_N = RowsFrom(targets.advantages_N, row);
  rest.row_weights_N = RowsFrom(targets.row_weights_N, row);
  return rest;
}

}  // namespace taopd
