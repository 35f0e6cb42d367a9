// The rows' targets as the kernels take them: raw pointers, null where a tensor is undefined or
// empty.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/torch/head/student_head.h"
#include "taopd/head/student_targets.h"

namespace taopd {

template <typename T>
const T* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.const_data_ptr<T>() : nullptr;
}

// Views of the targets, which must be contiguous and outlive the result.
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

}  // namespace taopd
