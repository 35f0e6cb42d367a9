// The gradient of a chunk's logits on the CPU, as the student's rows (student_chunk.h) leave it for
// the matrix products. Views: the memory is its maker's.
//
// Shapes: C rows of the chunk, V vocabulary in B blocks.
#pragma once

#include <cstdint>

#include "taopd/base/device.h"

namespace taopd::cpu {

// d (sum_n w_n loss_n) / d z_nv = row_scale_C[n] * factors_BC[v / block_size][n] * exps_VC[v][n].
struct LogitGradient {
  DataType dtype = DataType::kFloat32;
  const void* exps_VC = nullptr;
  const float* factors_BC = nullptr;  // powers of two, or 0
  const float* row_scale_C = nullptr;
  int64_t num_rows = 0, vocabulary_size = 0, block_size = 0;
};

// The gradient's entries in units of the row's scale: of row n, values_Ce[n * per_row + i] at
// ids_Ce[...], -1 for none. An id occurs once a row.
struct LogitEntries {
  const int32_t* ids_Ce = nullptr;
  const float* values_Ce = nullptr;
  int64_t num_rows = 0, per_row = 0;
};

}  // namespace taopd::cpu
