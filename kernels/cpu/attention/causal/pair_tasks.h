// Causal attention of one key-value head with products of bfloat16 pairs and float32 sums
// (packed_gemm.h), on processors with instructions for them. See head_task.h.
//
// The softmax's weights, and in the backward pass also the gradient of the scores, are rounded to
// bfloat16 before they are multiplied. Scores, sums over keys and queries, and the softmax are
// float32.
//
// A row's sums go over the keys in groups at multiples of 32 positions, whatever the block of
// queries, so a row has the same bits in a sequence and in one that continues another.
#pragma once

#include "kernels/cpu/attention/causal/head_task.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {

// The products of a block of queries and its keys. Matrices of scores have the stride of a block
// (ScoreStride, WeightStride), and zeros up to a whole panel of keys.
class PairHeadProducts {
 public:
  PairHeadProducts(const CausalKernels& kernels, int64_t head_size)
      : gemm_(kernels.pairs), D_(head_size) {}

  // Returns the number of keys of a block, rounded up to whole panels.
  static int64_t PaddedKeys(const QueryBlock& block) {
    return RoundUp(block.num_keys(), kPanelOutputs);
  }
  // Rows at distances of a power of two would share few of a cache's sets.
  static int64_t ScoreStride(const QueryBlock& block) { return PaddedKeys(block) + 16; }
  static int64_t WeightStride(const QueryBlock& block) { return PaddedKeys(block) + 32; }

  // Pack the rows of all positions as `keys` of MultiplyKeys, and as `panels` of MultiplyRows.
  const Bfloat16Bits* PackKeys(const Bfloat16Bits* x, int64_t stride, int64_t length,
                               CausalBuffer* buffer) const;
  const Bfloat16Bits* PackRows(const std::vector<const Bfloat16Bits*>& rows,
                               CausalBuffer* buffer) const;

  // scores = a [num, D] times the block's keys.
  void MultiplyKeys(const Bfloat16Bits* a, int64_t stride, const Bfloat16Bits* keys,
                    const QueryBlock& block, float* scores) const;
  // result [num, D] = weights times the block's rows of `length`, or += if `accumulate` is set.
  void MultiplyRows(const Bfloat16Bits* weights, const Bfloat16Bits* panels, int64_t length,
                    const QueryBlock& block, bool accumulate, float* result) const;
  // sums [L, D], at the block's keys, += weights^T rows [num, D], which PackRows packed.
  void AddTransposed(const Bfloat16Bits* weights, const Bfloat16Bits* rows, const QueryBlock& block,
                     CausalScratch* scratch, float* sums) const;

 private:
  const PackedGemm& gemm_;
  const int64_t D_;
};

class PairForwardTask : public HeadTask {
 public:
  // Computes some queries of the sequence.
  PairForwardTask(const CausalAttentionForward& problem, const CausalKernels& kernels,
                  CausalScratch* scratch, int64_t sequence, int64_t kv_head, QueryRange queries)
      : HeadTask(problem, kernels, scratch, sequence, kv_head, queries),
        products_(kernels, problem.head_size),
        forward_(problem) {}

  void Compute() const;

 private:
  void ComputeBlock(const QueryBlock& block, int64_t head, const Bfloat16Bits* keys,
                    const Bfloat16Bits* values) const;

  const PairHeadProducts products_;
  const CausalAttentionForward& forward_;
};

class PairBackwardTask : public BackwardHeadTask {
 public:
  PairBackwardTask(const CausalAttentionBackward& problem, const CausalKernels& kernels,
                   CausalScratch* scratch, int64_t sequence, int64_t kv_head)
      : BackwardHeadTask(problem, kernels, scratch, sequence, kv_head),
        products_(kernels, problem.head_size),
        gemm_(kernels.gemm) {}

  // Computes the gradients of the sequence's queries, and adds to those of keys and values.
  void Compute() const;

 private:
  struct Panels {
    const Bfloat16Bits *keys, *rows_of_keys, *values;
  };
  // The rows of a block of queries and one head.
  struct Rows {
    const Bfloat16Bits *q, *d_out;              // at their strides
    const Bfloat16Bits *q_panel, *d_out_panel;  // packed
    const float* deltas;
    const float* log_sum_exp;  // of the first query; num_heads apart
  };
  void ComputeBlock(const QueryBlock& block, int64_t head, const Panels& panels,
                    const KeyGradients& sums) const;
  void ComputeKeys(const QueryBlock& chunk, const Rows& rows, const Panels& panels, bool is_first,
                   const KeyGradients& sums, float* d_queries) const;
  void ComputeDeltas(const QueryBlock& block, int64_t head, float* deltas) const;

  const PairHeadProducts products_;
  const PanelGemm& gemm_;
};

}  // namespace taopd::cpu
