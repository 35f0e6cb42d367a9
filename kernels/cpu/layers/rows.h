// Access to the rows of arrays whose type is known only at run time, and the distribution of rows
// over threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {

inline constexpr int64_t kElementsPerTask = 1 << 12;  // less work is not worth waking a thread

inline int64_t RowsPerTask(int64_t row_size) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(row_size, 1));
}

// Returns row `row` of a matrix with rows of `stride` elements; null stays null.
inline Row At(const void* matrix, int64_t row, int64_t stride, DataType type) {
  if (matrix == nullptr) return nullptr;
  return static_cast<const char*>(matrix) + row * stride * SizeOf(type);
}
inline MutableRow At(void* matrix, int64_t row, int64_t stride, DataType type) {
  if (matrix == nullptr) return nullptr;
  return static_cast<char*>(matrix) + row * stride * SizeOf(type);
}

}  // namespace taopd::cpu
