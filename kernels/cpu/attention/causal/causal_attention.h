// Causal attention of a pack of whole sequences, forward and backward, on the CPU: no padding, no
// copies of the pack, and no matrix of scores larger than a block of queries by its keys.
//
// Numbers are float32 or bfloat16. Processors with products of bfloat16 pairs use these for
// bfloat16, with float32 sums (pair_tasks.h), and round weights to bfloat16 before they multiply
// them. Otherwise arithmetic is float32 (float_tasks.h). Results are rounded once.
//
// A row of the result depends only on the rows of its own sequence, and nothing depends on the
// number of threads: a task is one key-value head of up to 1,024 queries of a sequence (in the
// backward pass, of a sequence together with those that continue it), and its sums run in order. A
// row of a sequence that continues another one has the bits that it would have if both were written
// out as one sequence. The bits differ from those of paged attention (taopd/attention), which
// merges partitions of the keys.
//
// Row t of an array starts at t * stride, and its heads of D numbers follow one another. Arrays
// belong to the caller. Each thread keeps scratch memory: about 6 L D + 200 L float32 numbers
// for sequences of length L. Any thread may call the functions; calls with different outputs may
// overlap.
//
// Shapes: T rows, N query heads, K key-value heads (N is a multiple of K), D head size.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/data_type.h"
#include "taopd/base/parallel_for.h"

namespace taopd::cpu {

struct CausalAttention {
  DataType dtype = DataType::kFloat32;
  // Sequence i has rows [cu_seqlens[i], cu_seqlens[i + 1]); the range may be empty.
  const int64_t* cu_seqlens = nullptr;
  int64_t num_sequences = 0;
  // Sequence i continues sequence parents[i] < i, which must not continue another. The positions of
  // i follow the parent's, and i sees all of those. It continues none if parents[i] is -1. If null,
  // no sequence continues another.
  const int64_t* parents = nullptr;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  float scale = 1;  // scale of the scores, > 0
  // A position sees itself and the sliding_window - 1 positions before it. 0: all before it.
  int64_t sliding_window = 0;
  const void* q_TND = nullptr;
  int64_t q_stride = 0;
  const void* k_TKD = nullptr;
  int64_t k_stride = 0;
  const void* v_TKD = nullptr;
  int64_t v_stride = 0;
};

struct CausalAttentionForward : CausalAttention {
  void* out_TND = nullptr;
  int64_t out_stride = 0;
  float* log_sum_exp_TN = nullptr;  // of the scaled scores, for the backward pass; may be null
};
// Only tests pass `set`. REQUIRES: IsSupported(set).
void AttendCausally(const CausalAttentionForward& problem, const ParallelFor& parallel_for,
                    InstructionSet set = WidestInstructionSet());

// The gradients of q, k and v, all of type dtype.
struct CausalAttentionBackward : CausalAttention {
  const void* out_TND = nullptr;  // output of the forward pass
  int64_t out_stride = 0;
  const float* log_sum_exp_TN = nullptr;
  const void* d_out_TND = nullptr;
  int64_t d_out_stride = 0;
  void* d_q_TND = nullptr;
  int64_t d_q_stride = 0;
  void* d_k_TKD = nullptr;
  int64_t d_k_stride = 0;
  void* d_v_TKD = nullptr;
  int64_t d_v_stride = 0;
};
void AttendCausallyBackward(const CausalAttentionBackward& problem, const ParallelFor& parallel_for,
                            InstructionSet set = WidestInstructionSet());

}  // namespace taopd::cpu
