// The targets, options and results of the student's head (kernels/torch/head/student_head.h), which
// its kernels and its composition share.
//
// Shapes: N rows, H hidden, V vocabulary, k support size, M kNumHeadMetrics.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>

#include "kernels/torch/tensor_data.h"
#include "taopd/head/student_targets.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// The tensors of StudentTargets (taopd/head/student_targets.h), which says what each of them means
// and which may be undefined. The numbers are float32 and the ids int32.
struct HeadTargets {
  // An objective that needs the full vocabulary needs k = V.
  at::Tensor support_ids_Nk;
  at::Tensor teacher_log_probs_Nk;
  at::Tensor teacher_log_tail_N;
  at::Tensor sampled_ids_N;
  at::Tensor teacher_sampled_log_probs_N;
  at::Tensor teacher_entropy_N;
  at::Tensor behavior_log_probs_N;
  at::Tensor advantages_N;
  at::Tensor row_weights_N;

  // Returns all of the above, defined or not. Each has N rows.
  std::array<at::Tensor*, 9> Tensors() {
    return {&support_ids_Nk,
            &teacher_log_probs_Nk,
            &teacher_log_tail_N,
            &sampled_ids_N,
            &teacher_sampled_log_probs_N,
            &teacher_entropy_N,
            &behavior_log_probs_N,
            &advantages_N,
            &row_weights_N};
  }
};

// Returns the targets as the kernels take them: raw pointers, null where a tensor is undefined or
// empty. The targets must be contiguous and outlive the result.
inline StudentTargets PointersTo(const HeadTargets& targets) {
  const at::Tensor& support = targets.support_ids_Nk;
  StudentTargets pointers;
  pointers.support_ids_Nk = DataOrNull<int32_t>(support);
  pointers.teacher_log_probs_Nk = DataOrNull<float>(targets.teacher_log_probs_Nk);
  pointers.k = support.defined() ? static_cast<int32_t>(support.size(1)) : 0;
  pointers.teacher_log_tail_N = DataOrNull<float>(targets.teacher_log_tail_N);
  pointers.sampled_ids_N = DataOrNull<int32_t>(targets.sampled_ids_N);
  pointers.teacher_sampled_log_probs_N = DataOrNull<float>(targets.teacher_sampled_log_probs_N);
  pointers.teacher_entropy_N = DataOrNull<float>(targets.teacher_entropy_N);
  pointers.behavior_log_probs_N = DataOrNull<float>(targets.behavior_log_probs_N);
  pointers.advantages_N = DataOrNull<float>(targets.advantages_N);
  pointers.row_weights_N = DataOrNull<float>(targets.row_weights_N);
  return pointers;
}

struct HeadOptions {
  // One objective, or a linear combination of several.
  ObjectiveTerms objective;
  // Logits are divided by this before the softmax; > 0.
  double temperature = 1.0;
  // Whether to fill in kTopKOverlap and kTopKOverlapAdvantage.
  bool top_k_metrics = false;
  // The memory that a chunk may take besides the inputs and outputs. At least one row is computed
  // at a time, even if it takes more.
  int64_t workspace_bytes = 256 << 20;
};

struct HeadOutput {
  // float32, not multiplied by the rows' weights, on the device of hidden.
  at::Tensor loss_N;
  // float32 [N, kNumHeadMetrics] on the CPU; the columns of taopd/objective/row_metrics.h.
  at::Tensor metrics_NM;
  // d (sum_n w_n loss_n) / d hidden, in hidden's dtype and on its device.
  at::Tensor d_hidden_NH;
};

}  // namespace taopd
