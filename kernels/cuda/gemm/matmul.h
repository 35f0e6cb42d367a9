// Matrix products by cuBLASLt: bfloat16 or float32 inputs, float32 accumulators and results.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/data_type.h"
#include "taopd/base/device.h"

namespace taopd::cuda {

// A row-major matrix in device memory.
struct Operand {
  const void* data = nullptr;
  int64_t stride = 0;       // in elements
  bool transposed = false;  // the memory holds the transpose of the operand
};

inline constexpr int64_t kMatmulScratchBytes = 32 << 20;

// Enqueues c[m, n] = beta c + a[m, k] b[k, n] under the contract of taopd/base/device.h. a and b
// have the type `inputs`. c is float32 and row-major with c_stride elements per row; it is not read
// if beta is zero. float32 inputs are multiplied in float32, not in TF32. Uses context.stream and
// context.cublaslt. `scratch` is kMatmulScratchBytes of device memory, aligned to 256 bytes.
std::string Matmul(DataType inputs, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, float beta, float* c, int64_t c_stride, void* scratch,
                   const DeviceContext& context);

}  // namespace taopd::cuda
