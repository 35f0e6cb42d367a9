// Memory of the matrix products, and bfloat16 tensors as the loops of kernels/cpu take them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/cpu/gemm/panel_gemm.h"

namespace taopd {

inline at::Tensor Buffer(int64_t num, at::ScalarType dtype) {
  return at::empty({num}, at::TensorOptions().dtype(dtype));
}

inline const cpu::Bfloat16Bits* Bits(const at::BFloat16* data) {
  return reinterpret_cast<const cpu::Bfloat16Bits*>(data);
}
inline cpu::Bfloat16Bits* Bits(at::BFloat16* data) {
  return reinterpret_cast<cpu::Bfloat16Bits*>(data);
}

}  // namespace taopd
