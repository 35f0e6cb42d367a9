// The operations on the rows of fused projections (q | k | v and gate | up), which read the parts
// in place. The arithmetic is that of HeadsForward and SwiGluForward
// (taopd/layers/norms_and_swiglu.h), element for element. A row of a result depends only on its own
// row.
//
// Shapes: T rows, N query heads, K key-value heads, D head size, I intermediate size.
#pragma once

#include <cstdint>

#include "taopd/base/data_type.h"
#include "taopd/base/parallel_for.h"

namespace taopd::cpu {

// All arrays are contiguous, of type dtype unless they are float*, and belong to the caller.
struct FusedHeads {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  const void* qkv_TC = nullptr;  // C = (N + 2 K) D
  const void* q_norm_D = nullptr;
  const void* k_norm_D = nullptr;  // null: no norm
  const void* cos_TD = nullptr;    // as in HeadsForward
  const void* sin_TD = nullptr;
};

// queries = the rotated query heads, normalized if there is a norm's weight; keys are computed in
// the same way.
struct FusedRotation : FusedHeads {
  float eps = 0;
  void* queries_TND = nullptr;
  void* keys_TKD = nullptr;
  // 1 / rms of each query and key head, for the backward pass, A = N + K; may be null.
  float* inverse_rms_TA = nullptr;
};
void RotateFusedHeads(const FusedRotation& problem, const ParallelFor& parallel_for);

// The gradient of FusedRotation: HeadsBackward, element for element. Writes the columns of the
// queries and keys of d_qkv and leaves those of the values unchanged.
struct FusedRotationBackward : FusedHeads {
  const float* inverse_rms_TA = nullptr;
  const void* d_queries_TND = nullptr;
  const void* d_keys_TKD = nullptr;
  void* d_qkv_TC = nullptr;
  // The gradients of the norms, float32; unused without a norm. The partial sums are scratch
  // memory, P = NumPartials(T) of taopd/layers/norms_and_swiglu.h.
  float* partials_P2D = nullptr;
  float* d_norms_2D = nullptr;
};
void RotateFusedHeadsBackward(const FusedRotationBackward& problem,
                              const ParallelFor& parallel_for);

// y = silu(gate) up.
struct FusedSwiGlu {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0;
  int64_t size = 0;  // I
  const void* gate_up_T2I = nullptr;
  void* y_TI = nullptr;
};
void ComputeFusedSwiGlu(const FusedSwiGlu& problem, const ParallelFor& parallel_for);

// The gradient of FusedSwiGlu: SwiGluBackward, element for element.
struct FusedSwiGluBackward {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0;
  int64_t size = 0;
  const void* gate_up_T2I = nullptr;
  const void* d_y_TI = nullptr;
  void* d_gate_up_T2I = nullptr;
};
void ComputeFusedSwiGluBackward(const FusedSwiGluBackward& problem,
                                const ParallelFor& parallel_for);

}  // namespace taopd::cpu
