// Pass 3 of taopd/head/fused_head.h: the objective, with one thread per row, and the entries of E
// that are not a multiple of p(v).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/student_sweep.h"
#include "taopd/head/fused_head.h"
#include "taopd/head/student_row.h"

namespace taopd::cuda {

struct ObjectiveArguments : StudentRows {
  ObjectiveTerms objective{};
  int64_t num_rows = 0;
  double* work = nullptr;  // [rows, kStudentRowWork * k]
  float* loss = nullptr;
  float* metrics = nullptr;  // [rows, kNumHeadMetrics]
  // The gradient is row_scale times E, in whose rows the entries replace the exponentials. Null
  // pointers mean that it is not requested.
  bool dense = true;           // otherwise the entries are the whole gradient and row_scale is 1
  float* row_scale = nullptr;  // [rows]
  // [rows, k + 1]; -1 means no entry. The last entry is y if it is not in the support.
  int32_t* entry_ids = nullptr;
  float* entry_values = nullptr;  // [rows, k + 1]
};

inline constexpr int kObjectiveThreads = 64;

__global__ void __launch_bounds__(kObjectiveThreads) StudentObjective(ObjectiveArguments args) {
  const int64_t n = int64_t{blockIdx.x} * kObjectiveThreads + threadIdx.x;
  if (n >= args.num_rows) return;
  const int64_t k = args.targets.k;
  StudentRowInput input;
  SetTargets(args.targets, n, args.sizes[n], args.vocab_size, &input);
  input.rest = {args.sums[n].reference, args.sums[n].sum, args.sums[n].sum_x};
  input.scale = args.scale;
  input.support_logits = args.support_logits + n * k;
  input.sampled_logit = args.sampled_logits[n];
  if (args.in_top_k != nullptr) input.in_top_k = args.in_top_k + n * k;
  const StudentRowGradient row =
      FinishStudentRow(args.objective, input, args.work + n * kStudentRowWork * k,
                       args.metrics + n * kNumHeadMetrics);
  args.loss[n] = static_cast<float>(row.loss);
  if (args.entry_ids == nullptr) return;  // no gradient is requested

  args.row_scale[n] =
      WriteRowEntries(input, row, args.targets.row_weights_N[n], args.dense, args.targets.k,
                      args.entry_ids + n * (k + 1), args.entry_values + n * (k + 1));
}

// Sets E[n, entry_ids] = entry_values, with one thread per entry. The sweep has reported ids that
// are out of range.
template <typename Element>
__global__ void WriteEntries(const int32_t* ids, const float* values, int64_t num_entries,
                             int32_t entries_per_row, int64_t vocab_size, Element* e,
                             int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_entries) return;
  const int32_t id = ids[i];
  if (id < 0 || id >= vocab_size) return;
  Store(values[i], e + i / entries_per_row * stride + id);
}

// Sets out[n] = row_scale[n] * in[n] for H columns, with one block per row.
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
