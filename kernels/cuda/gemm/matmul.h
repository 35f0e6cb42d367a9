// Matrix products through cuBLASLt: bfloat16 or float32 inputs, float32 accumulators and results.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"

namespace taopd::cuda {

// Row-major, strides in elements. transposed: the memory holds the transpose of the operand.
struct Operand {
  const void* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

inline constexpr int64_t kMatmulScratchBytes = 32 << 20;

// c[m, n] = beta c + a[m, k] b[k, n], float32 c with the given stride. float32 inputs are
// multiplied in float32, not TF32. scratch: kMatmulScratchBytes of device memory, aligned to 256
// bytes.
std::string Matmul(DataType inputs, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, float beta, float* c, int64_t c_stride, void* scratch,
                   const DeviceContext& context);

}  // namespace taopd::cuda
