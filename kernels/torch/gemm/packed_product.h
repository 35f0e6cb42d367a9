// Products with packed panels (kernels/cpu/gemm/packed_gemm.h), forward and backward, on the
// threads of ParallelLoop. PackedWeight and Linear use them.
//
// Matrices are float32 or bfloat16; sums are float32. A row of a product depends only on its own
// row of x, and nothing depends on the number of threads. Only tests pass `gemm`. Callers check
// shapes, types and devices. Any thread may call these functions.
//
// Shapes: M rows, N outputs and K inputs of a linear layer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/packed_gemm.h"

namespace taopd {

// Returns whether a matrix of this type is packed in pairs; others are packed as float32.
inline bool IsPairs(at::ScalarType dtype) { return dtype == at::kBFloat16; }

// Returns the number of elements of one panel of a matrix of this type.
int64_t PanelElements(int64_t num_inputs, at::ScalarType dtype);

// Adds the bias, which may be null, to the sums of a row, and rounds them to the type of y.
void StoreRow(const cpu::PackedGemm& gemm, const float* sums, const float* bias, int64_t columns,
              at::ScalarType out, void* y);

// The panels of a packed matrix. Refers to memory of the owner.
struct PackedPanels {
  // All panels, bfloat16 or float32.
  explicit PackedPanels(const at::Tensor& panels)
      : pairs(IsPairs(panels.scalar_type())), plain(panels.const_data_ptr()) {}
  explicit PackedPanels(const cpu::CodedPanel* coded_panels) : pairs(true), coded(coded_panels) {}

  bool pairs;
  const void* plain = nullptr;
  const cpu::CodedPanel* coded = nullptr;  // null: `plain` is used
};

// Computes y [M, num_outputs] = x [M, num_inputs] times the packed matrix, plus the bias, which may
// be null, rounded once to y's type. The columns of y are adjacent; its rows may have any stride.
void MultiplyPacked(const at::Tensor& x_MK, const PackedPanels& panels, int64_t num_outputs,
                    const float* bias, const at::Tensor& y_MN,
                    const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

// Returns dx [M, K] = dy [M, N] W, in dy's type. `parts` are the contiguous weights [N_i, K] whose
// outputs follow one another in dy.
at::Tensor InputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& parts,
                         const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

// The gradient of a weight [N_i, K] and the tensor to which it is added: `target` is float32 and
// contiguous, and takes the columns of dy from first_output on.
struct WeightGradient {
  at::Tensor target;
  int64_t first_output = 0;
};
// Computes target += dy^T x for each gradient. x [M, K] has dy's type.
void AddWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                        const std::vector<WeightGradient>& gradients,
                        const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

}  // namespace taopd
