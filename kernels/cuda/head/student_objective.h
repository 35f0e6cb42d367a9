// Pass 3 of taopd/head/fused_head.h: the objective, one thread per row, and the entries of E that
// are not a p(v).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/student_sweep.h"
#include "taopd/head/fused_head.h"
#include "taopd/head/student_row.h"

namespace taopd::cuda {

struct ObjectiveArguments {
  ObjectiveTerms objective;
  int64_t num_rows = 0;
  int64_t vocabulary_size = 0;
  float scale = 1;  // 1 / temperature
  int32_t k = 0;
  const int32_t* support_ids = nullptr;  // [rows, k], as all that follow of these rows
  const float* teacher_log_probs = nullptr;
  const float* teacher_log_tail = nullptr;
  const int32_t* sampled_ids = nullptr;
  const float* teacher_sampled_log_probs = nullptr;
  const float* teacher_entropy = nullptr;
  const float* behavior_log_probs = nullptr;
  const float* row_weights = nullptr;
  const float* taken = nullptr;
  const float* sampled_logits = nullptr;
  const int32_t* sizes = nullptr;
  const SweepSums* sums = nullptr;
  const uint8_t* in_top_k = nullptr;  // null: no overlap metrics
  double* scratch = nullptr;          // [rows, 4 k]
  float* loss = nullptr;
  float* metrics = nullptr;  // [rows, kNumHeadMetrics]
  // The gradient: E's rows are multiplied by row_scale; the entries' columns (-1: none) and values,
  // in units of row_scale. Without a dense part row_scale is 1.
  bool dense = true;
  float* row_scale = nullptr;     // [rows]
  int32_t* entry_ids = nullptr;   // [rows, k + 1]; the last is y where it is not in the support
  float* entry_values = nullptr;  // [rows, k + 1]
};

inline constexpr int kObjectiveThreads = 64;

__device__ inline float ValueOrNan(const float* values, int64_t n) {
  return values != nullptr ? values[n] : std::numeric_limits<float>::quiet_NaN();
}

__global__ void __launch_bounds__(kObjectiveThreads) StudentObjective(ObjectiveArguments args) {
  const int64_t n = int64_t{blockIdx.x} * kObjectiveThreads + threadIdx.x;
  if (n >= args.num_rows) return;
  const int64_t k = args.k;
  StudentRowInput input;
  input.rest = {args.sums[n].reference, args.sums[n].sum, args.sums[n].sum_x};
  input.scale = args.scale;
  input.taken = args.taken + n * k;
  input.sampled_logit = args.sampled_logits[n];
  input.ids = args.support_ids + n * k;
  input.teacher_log_probs = args.teacher_log_probs + n * k;
  input.k = args.sizes[n];
  input.whole_vocabulary = input.k == args.vocabulary_size;
  input.sampled_id = args.sampled_ids[n];
  input.teacher_log_tail = ValueOrNan(args.teacher_log_tail, n);
  input.teacher_sampled_log_prob = ValueOrNan(args.teacher_sampled_log_probs, n);
  input.teacher_entropy = ValueOrNan(args.teacher_entropy, n);
  if (args.behavior_log_probs != nullptr) input.behavior_log_prob = args.behavior_log_probs + n;
  if (args.in_top_k != nullptr) input.in_top_k = args.in_top_k + n * k;
  double* log_p = args.scratch + n * 4 * k;
  double* gradient = log_p + 2 * k;
  const StudentRowGradient row =
      FinishStudentRow(args.objective, input, log_p, log_p + k, gradient, log_p + 3 * k,
                       args.metrics + n * kNumHeadMetrics);
  args.loss[n] = static_cast<float>(row.loss);
  if (args.entry_ids == nullptr) return;  // no gradient is asked for

  args.row_scale[n] =
      WriteRowEntries(input, row, args.row_weights[n], args.dense, args.k, gradient,
                      args.entry_ids + n * (k + 1), args.entry_values + n * (k + 1));
}

// E[n, entry_ids] = entry_values, one thread per entry. Ids out of range were reported by the
// sweep.
template <typename Element>
__global__ void WriteEntries(const int32_t* ids, const float* values, int64_t num_entries,
                             int32_t entries_per_row, int64_t vocabulary_size, Element* e,
                             int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_entries) return;
  const int32_t id = ids[i];
  if (id < 0 || id >= vocabulary_size) return;
  Store(values[i], e + i / entries_per_row * stride + id);
}

// out[n] = row_scale[n] * in[n], for H columns: one block per row.
template <typename In, typename Out>
__global__ void ScaleRows(const In* in, int64_t in_stride, const float* row_scale,
                          int64_t num_columns, Out* out, int64_t out_stride) {
  const int64_t n = blockIdx.x;
  const float scale = row_scale[n];
  for (int64_t h = threadIdx.x; h < num_columns; h += blockDim.x) {
    Store(scale * Load(in + n * in_stride + h), out + n * out_stride + h);
  }
}

}  // namespace taopd::cuda
