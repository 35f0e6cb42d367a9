// What a transformer layer does between its matrix products, on raw pointers: RMSNorm of a residual
// sum, norm and rotation of queries and keys, SwiGLU; forward and backward. The arithmetic is in
// taopd/layers/layer_math.h. The CPU's functions (kernels/cpu/layers/layers.h) and CUDA's (below)
// share these structs.
//
// Arithmetic is float32 whatever the storage type is. Roundings to the storage type in the forward
// passes are those of transformers' modules (the normalised row before its weight, x cos before the
// other term, silu before up), so bfloat16 models compute what they were trained with; backward
// passes round once, at the end.
//
// Deterministic, and the same for any number of threads: a weight's gradient is summed over blocks
// of kRowsPerPartial rows, and those sums in order. Rows are contiguous unless a stride is given.
//
// Shapes: N rows, H hidden; T tokens, A heads, D head size; P partial sums.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"

namespace taopd {

inline constexpr int64_t kRowsPerPartial = 32;
constexpr int64_t NumPartials(int64_t num_rows) {
  return (num_rows + kRowsPerPartial - 1) / kRowsPerPartial;
}

// sum = x + added, normed = RMSNorm(sum). Without `added` the sum is x itself and is not written.
struct RmsNormForward {
  DataType dtype = DataType::kFloat32;  // of all but inverse_rms
  int64_t num_rows = 0;
  int64_t size = 0;  // H >= 1
  float eps = 0;
  const void* x_NH = nullptr;
  const void* added_NH = nullptr;  // may be null
  const void* weight_H = nullptr;
  void* sum_NH = nullptr;
  void* normed_NH = nullptr;
  float* inverse_rms_N = nullptr;  // what the backward pass keeps; may be null
};

// d_x = d_sum + the gradient through the norm; it is also that of `added`.
struct RmsNormBackward {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0;
  int64_t size = 0;
  const void* x_NH = nullptr;  // the sum, where there was one
  const void* weight_H = nullptr;
  const float* inverse_rms_N = nullptr;
  const void* d_normed_NH = nullptr;
  const void* d_sum_NH = nullptr;  // null: zero
  void* d_x_NH = nullptr;
  void* d_weight_H = nullptr;
  float* partials_PH = nullptr;  // scratch, P = NumPartials(N)
};

// out = rotation of the heads of x, each normalised before where there is a weight.
struct HeadsForward {
  DataType dtype = DataType::kFloat32;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_size = 0;  // D, even
  float eps = 0;
  const void* x_TAD = nullptr;
  const void* weight_D = nullptr;  // null: no norm
  const void* cos_TD = nullptr;    // both halves of a head; the sine of the first half carries the
  const void* sin_TD = nullptr;    // minus sign of the rotation
  void* out_TAD = nullptr;
  float* inverse_rms_TA = nullptr;  // null without a weight or where no backward pass follows
};

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
  int64_t d_out_token_stride = 0;  // in elements; attention's gradients come with heads first
  int64_t d_out_head_stride = 0;
  void* d_x_TAD = nullptr;
  void* d_weight_D = nullptr;
  float* partials_PD = nullptr;  // scratch, P = NumPartials(T)
};

// y = silu(gate) up over `size` elements.
struct SwiGluForward {
  DataType dtype = DataType::kFloat32;
  int64_t size = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
};

struct SwiGluBackward {
  DataType dtype = DataType::kFloat32;
  int64_t size = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* d_y = nullptr;
  void* d_gate = nullptr;
  void* d_up = nullptr;
};

// On CUDA, see taopd/base/device.h; no workspace is used. All pointers are device memory.
std::string RmsNormForwardCuda(const RmsNormForward& problem, const DeviceContext& context);
std::string RmsNormBackwardCuda(const RmsNormBackward& problem, const DeviceContext& context);
std::string HeadsForwardCuda(const HeadsForward& problem, const DeviceContext& context);
std::string HeadsBackwardCuda(const HeadsBackward& problem, const DeviceContext& context);
std::string SwiGluForwardCuda(const SwiGluForward& problem, const DeviceContext& context);
std::string SwiGluBackwardCuda(const SwiGluBackward& problem, const DeviceContext& context);

}  // namespace taopd
