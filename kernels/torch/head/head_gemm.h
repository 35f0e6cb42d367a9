// The logits of a language-model head on any device, and the checks and plans that the heads share.
//
// Logits are float32 for float32, bfloat16 and float16 inputs: bfloat16 logits would put an error
// of 4 to 36 % into the gradient of a reverse KL.
//
// Shapes: N rows, C rows of a chunk, H hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

// A head, as a tensor or packed for inference on the CPU.
struct HeadMatrix {
  // Implicit: a tensor is a head.
  HeadMatrix(at::Tensor head_VH) : lm_head_VH(std::move(head_VH)) {}
  // Refers to a packed copy, which must outlive this object.
  explicit HeadMatrix(const PackedWeight& head) : packed(&head) {}

  int64_t vocab_size() const;
  int64_t hidden_size() const;
  at::ScalarType dtype() const;
  at::Device device() const { return packed != nullptr ? at::kCPU : lm_head_VH.device(); }

  at::Tensor lm_head_VH;                 // undefined if packed
  const PackedWeight* packed = nullptr;  // null: lm_head_VH is used
};

// Throws c10::Error unless hidden [N, H] and the head [V, H] are float32, bfloat16 or float16, of
// one dtype and on one device, H is positive and V fits int32.
void CheckHeadInputs(const at::Tensor& hidden_NH, const HeadMatrix& head);

// Throws c10::Error unless all ids, which are int32 of any shape, are below vocab_size and at least
// `lowest`: 0, or -1 if that is padding.
void CheckIds(const at::Tensor& ids, const char* name, int32_t lowest, int64_t vocab_size);

// Returns the grain of ParallelLoop over rows: rows of a small vocabulary are not worth a thread
// each.
int64_t RowsPerTask(int64_t vocab_size);

// Computes logits from a head, to which it refers. A float16 head on the CPU that is not packed is
// widened once, at construction. Several threads may call Logits at the same time.
class HeadGemm {
 public:
  explicit HeadGemm(HeadMatrix head);

  // Writes logits = hidden lm_head^T, float32, on the device of both; the elements of a row of
  // logits must be adjacent. Uses PackedWeight or kernels/torch/gemm/head_gemm_cpu.h on the CPU,
  // and kernels/torch/composed/head_products.h otherwise.
  void Logits(const at::Tensor& hidden_CH, at::Tensor logits_CV) const;

 private:
  bool UsesCpuKernels() const;

  HeadMatrix head_;
};

}  // namespace taopd
