// The operations of a transformer layer between its matrix products, on raw pointers, forward and
// backward:
//   - the RMSNorm of a residual sum;
//   - the norm and rotation of queries and keys;
//   - SwiGLU.
// The arithmetic is in taopd/layers/layer_math.h. The caller owns all arrays, which are in the
// memory of the device that computes.
//
// Arithmetic is float32 for every storage type. The forward passes round to the storage type where
// transformers' modules do, so that bfloat16 models compute what they were trained with: the
// normalized row before it is multiplied by its weight, x cos before the other term is added, and
// silu before it is multiplied by up. The backward passes round once, at the end.
//
// Results repeat bit for bit and do not depend on the number of threads: the gradient of a weight
// is summed over blocks of kRowsPerPartial rows, and those sums are added in order.
//
// Shapes: N rows, H hidden; T tokens, A heads, D head size; P partial sums. Rows are contiguous
// unless a stride is given. Sizes and strides count elements.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/data_type.h"
#include "taopd/base/device.h"
#include "taopd/base/parallel_for.h"
#include "taopd/base/round_up.h"

namespace taopd {

inline constexpr int64_t kRowsPerPartial = 32;
constexpr int64_t NumPartials(int64_t num_rows) { return CeilDiv(num_rows, kRowsPerPartial); }

// sum = x + added; normed = RMSNorm(sum). Without `added` the sum is x itself and is not written.
struct RmsNormForward {
  DataType dtype = DataType::kFloat32;  // the type of all arrays except inverse_rms
  int64_t num_rows = 0;
  int64_t size = 0;  // H >= 1
  float eps = 0;
  const void* x_NH = nullptr;
  const void* added_NH = nullptr;  // may be null
  const void* weight_H = nullptr;
  void* sum_NH = nullptr;
  void* normed_NH = nullptr;
  // Needed by the backward pass; may be null.
  float* inverse_rms_N = nullptr;
};

// The gradient of RmsNormForward: d_x = d_sum + the gradient through the norm. The gradient of
// `added` is the same.
struct RmsNormBackward {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0;
  int64_t size = 0;
  const void* x_NH = nullptr;  // the sum, if something was added to x
  const void* weight_H = nullptr;
  const float* inverse_rms_N = nullptr;
  const void* d_normed_NH = nullptr;
  const void* d_sum_NH = nullptr;  // null: zero
  void* d_x_NH = nullptr;
  void* d_weight_H = nullptr;
  // Scratch memory, P = NumPartials(N).
  float* partials_PH = nullptr;
};

// out = the heads of x, each normalized if there is a weight, and then rotated.
struct HeadsForward {
  DataType dtype = DataType::kFloat32;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_size = 0;  // D, even
  float eps = 0;
  const void* x_TAD = nullptr;
  const void* weight_D = nullptr;  // null: no norm
  // Cosines for both halves of a head. The sine of the first half carries the minus sign of the
  // rotation.
  const void* cos_TD = nullptr;
  const void* sin_TD = nullptr;
  void* out_TAD = nullptr;
  // Needed by the backward pass if there is a weight; may be null.
  float* inverse_rms_TA = nullptr;
};

// The gradient of HeadsForward.
struct HeadsBackward {
  DataType dtype = DataType::kFloat32;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_size = 0;
  const void* x_TAD = nullptr;  // null without a weight
  const void* weight_D = nullptr;
  const float* inverse_rms_TA = nullptr;
  const void* cos_TD = nullptr;
  const void* sin_TD = nullptr;
  const void* d_out_TAD = nullptr;
  // Attention's gradients come with the heads first.
  int64_t d_out_token_stride = 0;
  int64_t d_out_head_stride = 0;
  void* d_x_TAD = nullptr;
  void* d_weight_D = nullptr;
  // Scratch memory, P = NumPartials(T); null without a weight.
  float* partials_PD = nullptr;
};

// y = silu(gate) up over `size` elements.
struct SwiGluForward {
  DataType dtype = DataType::kFloat32;
  int64_t size = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
};

// The gradient of SwiGluForward.
struct SwiGluBackward {
  DataType dtype = DataType::kFloat32;
  int64_t size = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* d_y = nullptr;
  void* d_gate = nullptr;
  void* d_up = nullptr;
};

// The functions of the CPU return when the work is done; they get their threads from the
// ParallelFor. Any thread may call them; calls with different outputs may overlap.
namespace cpu {
void NormalizeRows(const RmsNormForward& problem, const ParallelFor& parallel_for);
void NormalizeRowsBackward(const RmsNormBackward& problem, const ParallelFor& parallel_for);
void RotateHeads(const HeadsForward& problem, const ParallelFor& parallel_for);
void RotateHeadsBackward(const HeadsBackward& problem, const ParallelFor& parallel_for);
void ComputeSwiGlu(const SwiGluForward& problem, const ParallelFor& parallel_for);
void ComputeSwiGluBackward(const SwiGluBackward& problem, const ParallelFor& parallel_for);
}  // namespace cpu

// The CUDA functions, under the contract of taopd/base/device.h. They need neither a workspace nor
// cuBLASLt.
std::string RmsNormForwardCuda(const RmsNormForward& problem, const DeviceContext& context);
std::string RmsNormBackwardCuda(const RmsNormBackward& problem, const DeviceContext& context);
std::string HeadsForwardCuda(const HeadsForward& problem, const DeviceContext& context);
std::string HeadsBackwardCuda(const HeadsBackward& problem, const DeviceContext& context);
std::string SwiGluForwardCuda(const SwiGluForward& problem, const DeviceContext& context);
std::string SwiGluBackwardCuda(const SwiGluBackward& problem, const DeviceContext& context);

}  // namespace taopd
