// Causal attention of one key-value head with float32 arithmetic (panel_gemm.h): for float32, and
// for bfloat16 on processors without instructions for it. An object refers to the problem and to
// the thread's scratch memory. See head_task.h.
#pragma once

#include "kernels/cpu/attention/causal/head_task.h"

namespace taopd::cpu {

class FloatHeadProducts {
 public:
  FloatHeadProducts(const CausalKernels& kernels, DataType dtype, int64_t head_size)
      : gemm_(kernels.gemm), dtype_(dtype), D_(head_size), width_(kernels.gemm.panel_width) {}

  // Rows of one head as float32: in place, or widened into the buffer.
  struct Rows {
    const float* data;
    int64_t stride;
  };
  Rows Widened(const char* from, int64_t stride, int64_t num, CausalBuffer* buffer) const;
  // Packs rows into panels of B: B(d, j) = x[j][d] if transposed, otherwise B(j, d).
  const float* Pack(const void* x, int64_t stride, int64_t length, bool transposed,
                    CausalBuffer* buffer) const;

  // scores [num, num_keys] = a [num, D] times the block's columns of the transposed panels.
  void MultiplyKeys(const Rows& a, const float* transposed, const QueryBlock& block,
                    float* scores) const;
  // result [num, D] = weights [num, num_keys] times the block's rows of the panels of `length`
  // rows.
  void MultiplyRows(const float* weights, const float* panels, int64_t length,
                    const QueryBlock& block, float* result) const;
  // sums [L, D], at the block's keys, += weights [num, num_keys]^T rows [num, D].
  void AddTransposed(const float* weights, const Rows& rows, const QueryBlock& block,
                     CausalBuffer* buffer, float* sums) const;

 private:
  const PanelGemm& gemm_;
  const DataType dtype_;
  const int64_t D_, width_;
};

class FloatForwardTask : public HeadTask {
 public:
  // Computes some queries of the sequence.
  FloatForwardTask(const CausalAttentionForward& problem, const CausalKernels& kernels,
                   CausalScratch* scratch, int64_t sequence, int64_t kv_head, QueryRange queries)
      : HeadTask(problem, kernels, scratch, sequence, kv_head, queries),
        products_(kernels, problem.dtype, problem.head_size),
        key_multiple_(kernels.gemm.panel_width),
        forward_(problem) {}

  void Compute() const;

 private:
  void ComputeBlock(const QueryBlock& block, int64_t head, const float* keys,
                    const float* values) const;

  const FloatHeadProducts products_;
  const int64_t key_multiple_;
  const CausalAttentionForward& forward_;
};

class FloatBackwardTask : public BackwardHeadTask {
 public:
  FloatBackwardTask(const CausalAttentionBackward& problem, const CausalKernels& kernels,
                    CausalScratch* scratch, int64_t sequence, int64_t kv_head)
      : BackwardHeadTask(problem, kernels, scratch, sequence, kv_head),
        products_(kernels, problem.dtype, problem.head_size),
        key_multiple_(kernels.gemm.panel_width) {}

  // Computes the gradients of the sequence's queries, and adds to those of keys and values.
  void Compute() const;

 private:
  struct Panels {
    const float *keys_transposed, *keys, *values_transposed;
  };
  void ComputeBlock(const QueryBlock& block, int64_t head, const Panels& panels,
                    const KeyGradients& sums) const;

  const FloatHeadProducts products_;
  const int64_t key_multiple_;
};

}  // namespace taopd::cpu
