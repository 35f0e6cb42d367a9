// The types of the numbers that kernels, weights and memory plans are about.
#pragma once

#include <cstdint>

#include "taopd/base/always_inline.h"

namespace taopd {

// Kernels read and write float32 and bfloat16. float16 is a type of weights only; at the edge
// between LibTorch and the kernels, such weights are widened or left to ATen.
enum class DataType : int32_t { kFloat32, kBFloat16, kFloat16 };

// Bytes per element.
TAOPD_ALWAYS_INLINE constexpr int64_t SizeOf(DataType type) {
  return type == DataType::kFloat32 ? 4 : 2;
}

}  // namespace taopd
