// The part that all tasks of causal attention (causal_attention.h) share: the rows and keys of one
// key-value head of a sequence, and the blocks of queries that are computed together. float_tasks.h
// and pair_tasks.h compute the blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/attention/causal/causal_attention.h"
#include "kernels/cpu/attention/causal/causal_rows.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {

struct CausalKernels {
  explicit CausalKernels(InstructionSet set)
      : gemm(PanelGemmOf(set)), pairs(PackedGemmOf(set)), rows(CausalRowsOf(set)) {}
  const PanelGemm& gemm;
  const PackedGemm& pairs;
  const CausalRows& rows;
};

// Memory that only grows. It starts at a cache line. Ensure keeps the contents if the memory is
// large enough already; otherwise they are undefined.
class CausalBuffer {
 public:
  template <typename T>
  T* Ensure(int64_t num) {
    constexpr std::size_t kLine = 64;
    const auto bytes = static_cast<std::size_t>(num) * sizeof(T) + kLine;
    if (bytes_.size() < bytes) bytes_.resize(bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return reinterpret_cast<T*>((address + kLine - 1) / kLine * kLine);
  }
  void swap(CausalBuffer& other) { bytes_.swap(other.bytes_); }

 private:
  std::vector<char> bytes_;
};

// The memory of one thread.
struct CausalScratch {
  CausalBuffer keys_transposed, keys, values_transposed, values, gathered;
  CausalBuffer queries, gradient, output, scores, d_scores, result, query_panels, gradient_panels;
  CausalBuffer weights, d_weights, factors;  // bfloat16
  CausalBuffer d_keys, d_values, d_parent_keys, d_parent_values;
  std::vector<const Bfloat16Bits*> rows;
};

inline int64_t ParentOf(const CausalAttention& p, int64_t sequence) {
  return p.parents != nullptr ? p.parents[sequence] : -1;
}
inline int64_t LengthOf(const CausalAttention& p, int64_t sequence) {
  return sequence < 0 ? 0 : p.cu_seqlens[sequence + 1] - p.cu_seqlens[sequence];
}

// Queries [first, first + num) of a sequence, counted from its first row, and keys
// [first_key, end_key), counted from the parent's first row.
struct QueryBlock {
  int64_t first, num, first_key, end_key;
  int64_t num_keys() const { return end_key - first_key; }
};

// Queries [begin, end) of a sequence.
struct QueryRange {
  int64_t begin, end;
};

class HeadTask {
 protected:
  HeadTask(const CausalAttention& problem, const CausalKernels& kernels, CausalScratch* scratch,
           int64_t sequence, int64_t kv_head, QueryRange queries)
      : problem_(problem),
        rows_(kernels.rows),
        scratch_(*scratch),
        parent_(ParentOf(problem, sequence)),
        parent_length_(LengthOf(problem, parent_)),
        first_row_(problem.cu_seqlens[sequence]),
        queries_(queries),
        length_(parent_length_ + queries.end),
        kv_head_(kv_head),
        D_(problem.head_size),
        group_(problem.num_heads / problem.num_kv_heads) {}

  const char* ElementAt(const void* base, int64_t element) const {
    return static_cast<const char*>(base) + element * SizeOf(problem_.dtype);
  }
  char* ElementAt(void* base, int64_t element) const {
    return static_cast<char*>(base) + element * SizeOf(problem_.dtype);
  }

  // Returns the row of a position, which is counted from the parent's first row.
  int64_t RowOf(int64_t position) const {
    return position < parent_length_ ? problem_.cu_seqlens[parent_] + position
                                     : first_row_ + position - parent_length_;
  }

  // Returns the rows of all positions: in place, or those of the parent followed by the sequence's.
  struct PlacedRows {
    const void* data;
    int64_t stride;
  };
  PlacedRows AllRows(const void* x, int64_t stride, int64_t head) const {
    if (parent_length_ == 0) return {ElementAt(x, first_row_ * stride + head * D_), stride};
    const int64_t row_bytes = D_ * SizeOf(problem_.dtype);
    char* const gathered = scratch_.gathered.Ensure<char>(length_ * row_bytes);
    for (int64_t i = 0; i < length_; ++i) {
      std::memcpy(gathered + i * row_bytes, ElementAt(x, RowOf(i) * stride + head * D_),
                  static_cast<size_t>(row_bytes));
    }
    return {gathered, D_};
  }

  // Stores rows of D numbers, rounded, as queries [first, first + num).
  void StoreRows(const float* from, int64_t first, int64_t num, void* x, int64_t stride,
                 int64_t head) const {
    const LayerLoops& loops = BestLayerLoops(problem_.dtype);
    for (int64_t i = 0; i < num; ++i) {
      loops.narrow(from + i * D_, D_, ElementAt(x, (first_row_ + first + i) * stride + head * D_));
    }
  }

  // Calls function(QueryBlock) for blocks of `step` queries. The keys of a block are those that at
  // least one of its queries sees, from a multiple of key_multiple on.
  template <typename Function>
  void ForBlocks(int64_t step, int64_t key_multiple, const Function& function) const {
    for (int64_t first = queries_.begin; first < queries_.end; first += step) {
      const int64_t num = std::min(step, queries_.end - first);
      const int64_t position = parent_length_ + first;
      function(
          QueryBlock{first, num, FirstKey(position) / key_multiple * key_multiple, position + num});
    }
  }
  int64_t FirstKey(int64_t position) const {
    return problem_.sliding_window > 0
               ? std::max<int64_t>(0, position - problem_.sliding_window + 1)
               : 0;
  }
  // Returns the first key that query i of a block sees, counted from the block's first key.
  int64_t Begin(const QueryBlock& block, int64_t i) const {
    return FirstKey(parent_length_ + block.first + i) - block.first_key;
  }
  int64_t End(const QueryBlock& block, int64_t i) const {
    return parent_length_ + block.first + i + 1 - block.first_key;
  }

  const CausalAttention& problem_;
  const CausalRows& rows_;
  CausalScratch& scratch_;
  const int64_t parent_, parent_length_, first_row_;
  const QueryRange queries_;
  const int64_t length_;  // the number of positions up to the last query, with the parent's
  const int64_t kv_head_, D_, group_;
};

// The gradients of keys and values, which a sequence and those that continue it sum up.
class BackwardHeadTask : public HeadTask {
 public:
  // Writes the gradients of the keys and values of a sequence without a parent. Call it after all
  // sequences that continue it have been computed.
  void Finish() const {
    Store(scratch_.d_parent_keys.Ensure<float>(length_ * D_),
          scratch_.d_parent_values.Ensure<float>(length_ * D_));
  }

 protected:
  BackwardHeadTask(const CausalAttentionBackward& problem, const CausalKernels& kernels,
                   CausalScratch* scratch, int64_t sequence, int64_t kv_head)
      : HeadTask(problem, kernels, scratch, sequence, kv_head, {0, LengthOf(problem, sequence)}),
        backward_(problem) {}

  struct KeyGradients {
    float *d_keys, *d_values;  // [L, D]
  };
  KeyGradients StartGradients() const {
    const KeyGradients sums = {scratch_.d_keys.Ensure<float>(length_ * D_),
                               scratch_.d_values.Ensure<float>(length_ * D_)};
    std::fill_n(sums.d_keys, length_ * D_, 0.0f);
    std::fill_n(sums.d_values, length_ * D_, 0.0f);
    return sums;
  }
  // A sequence with a parent writes the gradients of its own keys and values. Those of a parent
  // stay in scratch memory until Finish, because its children, which are computed next, add to
  // them.
  void StoreGradients(const KeyGradients& sums) const {
    if (parent_ < 0) {
      scratch_.d_keys.swap(scratch_.d_parent_keys);
      scratch_.d_values.swap(scratch_.d_parent_values);
      return;
    }
    const int64_t num = parent_length_ * D_;
    AddTo(sums.d_keys, num, scratch_.d_parent_keys.Ensure<float>(num));
    AddTo(sums.d_values, num, scratch_.d_parent_values.Ensure<float>(num));
    Store(sums.d_keys + num, sums.d_values + num);
  }

  const CausalAttentionBackward& backward_;

 private:
  void Store(const float* d_keys, const float* d_values) const {
    const CausalAttentionBackward& p = backward_;
    StoreRows(d_keys, 0, queries_.end, p.d_k_TKD, p.d_k_stride, kv_head_);
    StoreRows(d_values, 0, queries_.end, p.d_v_TKD, p.d_v_stride, kv_head_);
  }
  static void AddTo(const float* from, int64_t num, float* to) {
    for (int64_t i = 0; i < num; ++i) to[i] += from[i];
  }
};

}  // namespace taopd::cpu
