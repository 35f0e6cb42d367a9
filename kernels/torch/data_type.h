// The edge between LibTorch's types of numbers and those of the kernels.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "taopd/base/data_type.h"

namespace taopd {

// Throws c10::Error for all types but float32, bfloat16 and float16.
inline DataType DataTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    default:
      TORCH_CHECK(false, type, " is not float32, bfloat16 or float16");
  }
}

inline at::ScalarType ScalarTypeOf(DataType type) {
  if (type == DataType::kFloat32) return at::kFloat;
  return type == DataType::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

}  // namespace taopd
