// The gradient of a chunk's logits on the CPU, which StudentChunk (student_chunk.h) computes and
// the matrix products of kernels/torch read. Both structs are views; the memory belongs to the
// StudentChunk that returned them.
//
// Shapes: C rows of the chunk; V vocabulary, in B blocks; E entries per row.
#pragma once

#include <cstdint>

#include "taopd/base/data_type.h"

namespace taopd::cpu {

// The whole gradient:
//
//   d (sum_n w_n loss_n) / d z_nv = row_scale_C[n] * factors_BC[v / block_size][n] * exps_VC[v][n]
struct LogitGradient {
  DataType dtype = DataType::kFloat32;  // of exps
  const void* exps_VC = nullptr;
  const float* factors_BC = nullptr;  // powers of two, or 0
  const float* row_scale_C = nullptr;
  int64_t num_rows = 0, vocab_size = 0, block_size = 0;
};

// The elements of the gradient at the support and at the sampled token, divided by the row's scale:
// entry i of row n is values_CE[n * per_row + i] at the id ids_CE[n * per_row + i]. An id of -1
// means that there is no such entry. An id occurs at most once per row.
struct LogitEntries {
  const int32_t* ids_CE = nullptr;
  const float* values_CE = nullptr;
  int64_t num_rows = 0, per_row = 0;
};

}  // namespace taopd::cpu
