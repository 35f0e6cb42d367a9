#include "kernels/cpu/attention/causal/causal_attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/causal/causal_rows.h"
#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {
namespace {

// The number of queries that are computed together. Blocks of short sequences are smaller, because
// scores past the diagonal are computed for the whole block.
constexpr int64_t kQueryRows = 48, kShortQueryRows = 24, kShortLength = 96;

const char* Place(const void* base, int64_t element, DataType type) {
  return static_cast<const char*>(base) + element * SizeOf(type);
}
char* Place(void* base, int64_t element, DataType type) {
  return static_cast<char*>(base) + element * SizeOf(type);
}

struct Kernels {
  explicit Kernels(InstructionSet set) : gemm(PanelGemmOf(set)), rows(CausalRowsOf(set)) {}
  const PanelGemm& gemm;
  const CausalRows& rows;
};

// Returns the data of a vector that only grows. Its contents are not initialized again.
float* Ensure(int64_t size, std::vector<float>* buffer) {
  if (static_cast<int64_t>(buffer->size()) < size) buffer->resize(size);
  return buffer->data();
}

struct Scratch {
  std::vector<float> keys_transposed, keys, values_transposed, values;
  std::vector<float> queries, gradient, scores, d_scores, result, query_panels, gradient_panels;
  std::vector<float> d_keys, d_values, d_parent_keys, d_parent_values, output;
  std::vector<char> gathered;
};

int64_t ParentOf(const CausalAttention& p, int64_t sequence) {
  return p.parents != nullptr ? p.parents[sequence] : -1;
}
int64_t LengthOf(const CausalAttention& p, int64_t sequence) {
  return sequence < 0 ? 0 : p.cu_seqlens[sequence + 1] - p.cu_seqlens[sequence];
}

// Queries [first, first + num) of a sequence, counted from its first row, and the keys
// [first_key, end_key) that at least one of them sees, counted from the parent's first row.
struct QueryBlock {
  int64_t first, num, first_key, end_key;
  int64_t num_keys() const { return end_key - first_key; }
};

// The common part of the forward and the backward pass of one sequence and key-value head.
class HeadTask {
 public:
  HeadTask(const CausalAttention& problem, const Kernels& kernels, Scratch* scratch,
           int64_t sequence, int64_t kv_head)
      : p_(problem),
        gemm_(kernels.gemm),
        rows_(kernels.rows),
        s_(*scratch),
        parent_(ParentOf(problem, sequence)),
        parent_length_(LengthOf(problem, parent_)),
        first_row_(problem.cu_seqlens[sequence]),
        num_queries_(LengthOf(problem, sequence)),
        length_(parent_length_ + num_queries_),
        kv_head_(kv_head),
        D_(problem.head_size),
        width_(kernels.gemm.panel_width),
        group_(problem.num_heads / problem.num_kv_heads) {}

 protected:
  // Packs the sequence's rows of one head into panels of B: B(d, j) = x[j][d] if transposed,
  // otherwise B(j, d).
  const float* Pack(const void* x, int64_t stride, int64_t head, bool transposed,
                    std::vector<float>* buffer) const {
    const int64_t num_k = transposed ? D_ : length_, num_n = transposed ? length_ : D_;
    float* panels = Ensure((num_n + width_ - 1) / width_ * width_ * num_k, buffer);
    const auto order = transposed ? ElementOrder::kColumns : ElementOrder::kRows;
    if (parent_length_ == 0) {
      PackRows(Place(x, first_row_ * stride + head * D_, p_.dtype), stride, num_k, num_n, order,
               panels);
    } else {
      PackRows(Gather(x, stride, head), D_, num_k, num_n, order, panels);
    }
    return panels;
  }
  // Returns the rows of the parent followed by those of the sequence, D elements each.
  const void* Gather(const void* x, int64_t stride, int64_t head) const {
    const int64_t row_bytes = D_ * SizeOf(p_.dtype);
    if (static_cast<int64_t>(s_.gathered.size()) < length_ * row_bytes) {
      s_.gathered.resize(static_cast<size_t>(length_ * row_bytes));
    }
    for (int64_t i = 0; i < length_; ++i) {
      const int64_t row =
          i < parent_length_ ? p_.cu_seqlens[parent_] + i : first_row_ + i - parent_length_;
      std::memcpy(s_.gathered.data() + i * row_bytes, Place(x, row * stride + head * D_, p_.dtype),
                  static_cast<size_t>(row_bytes));
    }
    return s_.gathered.data();
  }
  void PackRows(const void* from, int64_t stride, int64_t num_k, int64_t num_n, ElementOrder order,
                float* panels) const {
    if (p_.dtype == DataType::kBFloat16) {
      gemm_.pack_bf16(static_cast<const Bfloat16Bits*>(from), order, stride, num_k, num_n, panels);
    } else {
      gemm_.pack(static_cast<const float*>(from), order, stride, num_k, num_n, panels);
    }
  }

  // Rows [first, first + num) of one head as float32: in place, or widened into the buffer.
  struct FloatRows {
    const float* data;
    int64_t stride;
  };
  FloatRows Rows(const void* x, int64_t stride, int64_t head, int64_t first, int64_t num,
                 std::vector<float>* buffer) const {
    const char* from = Place(x, (first_row_ + first) * stride + head * D_, p_.dtype);
    if (p_.dtype == DataType::kFloat32) return {reinterpret_cast<const float*>(from), stride};
    float* to = Ensure(num * D_, buffer);
    for (int64_t i = 0; i < num; ++i) {
      gemm_.widen(reinterpret_cast<const Bfloat16Bits*>(from) + i * stride, D_, to + i * D_);
    }
    return {to, D_};
  }

  void StoreRows(const float* from, int64_t first, int64_t num, void* x, int64_t stride,
                 int64_t head) const {
    const LayerLoops& loops = BestLayerLoops(p_.dtype);
    for (int64_t i = 0; i < num; ++i) {
      loops.narrow(from + i * D_, D_,
                   Place(x, (first_row_ + first + i) * stride + head * D_, p_.dtype));
    }
  }

  template <typename Function>
  void ForBlocks(const Function& function) const {
    const int64_t step = length_ <= kShortLength ? kShortQueryRows : kQueryRows;
    for (int64_t first = 0; first < num_queries_; first += step) {
      const int64_t num = std::min(step, num_queries_ - first);
      const int64_t position = parent_length_ + first;
      function(QueryBlock{first, num, FirstKey(position) / width_ * width_, position + num});
    }
  }
  int64_t FirstKey(int64_t position) const {
    return p_.sliding_window > 0 ? std::max<int64_t>(0, position - p_.sliding_window + 1) : 0;
  }
  // Returns the first key that query i of a block sees, counted from the block's first key.
  int64_t Begin(const QueryBlock& block, int64_t i) const {
    return FirstKey(parent_length_ + block.first + i) - block.first_key;
  }
  int64_t End(const QueryBlock& block, int64_t i) const {
    return parent_length_ + block.first + i + 1 - block.first_key;
  }

  // scores [num, num_keys] = a [num, D] times the block's columns of the transposed panels.
  void MultiplyKeys(const FloatRows& a, const float* transposed, const QueryBlock& block,
                    float* scores) const {
    gemm_.multiply(a.data, ElementOrder::kRows, a.stride, transposed + block.first_key * D_,
                   block.num, block.num_keys(), D_, scores, block.num_keys(), /*accumulate=*/false);
  }
  // result [num, D] = weights [num, num_keys] times the block's rows of the panels.
  void MultiplyRows(const float* weights, const float* panels, const QueryBlock& block,
                    float* result) const {
    for (int64_t d = 0; d < D_; d += width_) {
      gemm_.multiply(weights, ElementOrder::kRows, block.num_keys(),
                     panels + d * length_ + block.first_key * width_, block.num,
                     std::min(width_, D_ - d), block.num_keys(), result + d, D_,
                     /*accumulate=*/false);
    }
  }

  const CausalAttention& p_;
  const PanelGemm& gemm_;
  const CausalRows& rows_;
  Scratch& s_;
  const int64_t parent_, parent_length_, first_row_, num_queries_;
  const int64_t length_;  // with the parent's
  const int64_t kv_head_, D_, width_, group_;
};

class ForwardTask : public HeadTask {
 public:
  ForwardTask(const CausalAttentionForward& problem, const Kernels& kernels, Scratch* scratch,
              int64_t sequence, int64_t kv_head)
      : HeadTask(problem, kernels, scratch, sequence, kv_head), forward_(problem) {}

  void Compute() const {
    const float* keys = Pack(p_.k_TKD, p_.k_stride, kv_head_, true, &s_.keys_transposed);
    const float* values = Pack(p_.v_TKD, p_.v_stride, kv_head_, false, &s_.values);
    for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
      ForBlocks([&](const QueryBlock& block) { ComputeBlock(block, head, keys, values); });
    }
  }

 private:
  void ComputeBlock(const QueryBlock& block, int64_t head, const float* keys,
                    const float* values) const {
    const FloatRows q = Rows(p_.q_TND, p_.q_stride, head, block.first, block.num, &s_.queries);
    float* scores = Ensure(block.num * block.num_keys(), &s_.scores);
    float* result = Ensure(block.num * D_, &s_.result);
    MultiplyKeys(q, keys, block, scores);
    float sums[kQueryRows];
    for (int64_t i = 0; i < block.num; ++i) {
      const float log_sum_exp = rows_.softmax(scores + i * block.num_keys(), Begin(block, i),
                                              End(block, i), block.num_keys(), p_.scale, &sums[i]);
      if (forward_.log_sum_exp_TN != nullptr) {
        forward_.log_sum_exp_TN[(first_row_ + block.first + i) * p_.num_heads + head] = log_sum_exp;
      }
    }
    MultiplyRows(scores, values, block, result);
    for (int64_t i = 0; i < block.num; ++i) rows_.scale(result + i * D_, 1 / sums[i], D_);
    StoreRows(result, block.first, block.num, forward_.out_TND, forward_.out_stride, head);
  }

  const CausalAttentionForward& forward_;
};

class BackwardTask : public HeadTask {
 public:
  BackwardTask(const CausalAttentionBackward& problem, const Kernels& kernels, Scratch* scratch,
               int64_t sequence, int64_t kv_head)
      : HeadTask(problem, kernels, scratch, sequence, kv_head), backward_(problem) {}

  // Writes the gradients of the sequence's own queries. A sequence with a parent also writes those
  // of its own keys and values. Those of a parent's keys and values stay in scratch memory until
  // Finish, because its children, which are computed next, add to them.
  void Compute() const {
    const Panels panels = {Pack(p_.k_TKD, p_.k_stride, kv_head_, true, &s_.keys_transposed),
                           Pack(p_.k_TKD, p_.k_stride, kv_head_, false, &s_.keys),
                           Pack(p_.v_TKD, p_.v_stride, kv_head_, true, &s_.values_transposed)};
    float* d_keys = Ensure(length_ * D_, &s_.d_keys);
    float* d_values = Ensure(length_ * D_, &s_.d_values);
    std::fill_n(d_keys, length_ * D_, 0.0f);
    std::fill_n(d_values, length_ * D_, 0.0f);
    for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
      ForBlocks(
          [&](const QueryBlock& block) { ComputeBlock(block, head, panels, d_keys, d_values); });
    }
    if (parent_ >= 0) {
      AddTo(d_keys, parent_length_ * D_, s_.d_parent_keys.data());
      AddTo(d_values, parent_length_ * D_, s_.d_parent_values.data());
      Store(d_keys + parent_length_ * D_, d_values + parent_length_ * D_);
    } else {
      s_.d_keys.swap(s_.d_parent_keys);
      s_.d_values.swap(s_.d_parent_values);
    }
  }
  // Writes the gradients of the keys and values of a sequence without a parent. Call it after all
  // sequences that continue it have been computed.
  void Finish() const { Store(s_.d_parent_keys.data(), s_.d_parent_values.data()); }

 private:
  void Store(const float* d_keys, const float* d_values) const {
    StoreRows(d_keys, 0, num_queries_, backward_.d_k_TKD, backward_.d_k_stride, kv_head_);
    StoreRows(d_values, 0, num_queries_, backward_.d_v_TKD, backward_.d_v_stride, kv_head_);
  }
  static void AddTo(const float* from, int64_t num, float* to) {
    for (int64_t i = 0; i < num; ++i) to[i] += from[i];
  }

  struct Panels {
    const float *keys_transposed, *keys, *values_transposed;
  };

  void ComputeBlock(const QueryBlock& block, int64_t head, const Panels& panels, float* d_keys,
                    float* d_values) const {
    const CausalAttentionBackward& p = backward_;
    const int64_t num_keys = block.num_keys();
    const FloatRows q = Rows(p.q_TND, p.q_stride, head, block.first, block.num, &s_.queries);
    const FloatRows d_out =
        Rows(p.d_out_TND, p.d_out_stride, head, block.first, block.num, &s_.gradient);
    const FloatRows out = Rows(p.out_TND, p.out_stride, head, block.first, block.num, &s_.output);
    float* scores = Ensure(block.num * num_keys, &s_.scores);
    float* d_scores = Ensure(block.num * num_keys, &s_.d_scores);
    MultiplyKeys(q, panels.keys_transposed, block, scores);
    MultiplyKeys(d_out, panels.values_transposed, block, d_scores);
    for (int64_t i = 0; i < block.num; ++i) {
      const float delta = rows_.dot(d_out.data + i * d_out.stride, out.data + i * out.stride, D_);
      rows_.gradient(scores + i * num_keys, d_scores + i * num_keys, Begin(block, i), End(block, i),
                     num_keys, p.scale,
                     p.log_sum_exp_TN[(first_row_ + block.first + i) * p.num_heads + head], delta);
    }
    float* d_queries = Ensure(block.num * D_, &s_.result);
    MultiplyRows(d_scores, panels.keys, block, d_queries);
    StoreRows(d_queries, block.first, block.num, p.d_q_TND, p.d_q_stride, head);
    AddTransposed(d_scores, q, block, &s_.query_panels, d_keys);
    AddTransposed(scores, d_out, block, &s_.gradient_panels, d_values);
  }

  // sums [L, D], at the block's keys, += weights [num, num_keys]^T rows [num, D].
  void AddTransposed(const float* weights, const FloatRows& rows, const QueryBlock& block,
                     std::vector<float>* buffer, float* sums) const {
    float* panels = Ensure((D_ + width_ - 1) / width_ * width_ * block.num, buffer);
    gemm_.pack(rows.data, ElementOrder::kRows, rows.stride, block.num, D_, panels);
    gemm_.multiply(weights, ElementOrder::kColumns, block.num_keys(), panels, block.num_keys(), D_,
                   block.num, sums + block.first_key * D_, D_, /*accumulate=*/true);
  }

  const CausalAttentionBackward& backward_;
};

// Calls task(sequences, kv head, scratch) for each group of sequences and each key-value head, on
// all threads. Groups differ in size, so a thread takes the next task when it finishes one; the
// largest come first.
using Groups = std::vector<std::vector<int64_t>>;
template <typename Task>
void RunTasks(const CausalAttention& problem, Groups groups, const ParallelFor& parallel_for,
              const Task& task) {
  const auto num_rows = [&](const std::vector<int64_t>& group) {
    int64_t sum = 0;
    for (const int64_t sequence : group) sum += LengthOf(problem, sequence);
    return sum;
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) { return num_rows(a) > num_rows(b); });
  const int64_t num_heads = problem.num_kv_heads;
  const int64_t num_tasks = static_cast<int64_t>(groups.size()) * num_heads;
  std::atomic<int64_t> next = 0;
  parallel_for(num_tasks, 1, [&](int64_t, int64_t) {
    static thread_local Scratch scratch;
    for (int64_t i = next++; i < num_tasks; i = next++) {
      task(groups[static_cast<size_t>(i / num_heads)], i % num_heads, &scratch);
    }
  });
}

}  // namespace

void Run(const CausalAttentionForward& problem, const ParallelFor& parallel_for,
         InstructionSet set) {
  const Kernels kernels(set);
  Groups groups;
  for (int64_t i = 0; i < problem.num_sequences; ++i) groups.push_back({i});
  RunTasks(problem, std::move(groups), parallel_for,
           [&](const std::vector<int64_t>& group, int64_t kv_head, Scratch* scratch) {
             if (LengthOf(problem, group[0]) == 0) return;
             ForwardTask(problem, kernels, scratch, group[0], kv_head).Compute();
           });
}

void Run(const CausalAttentionBackward& problem, const ParallelFor& parallel_for,
         InstructionSet set) {
  const Kernels kernels(set);
  // A sequence followed by the sequences that continue it, in order.
  Groups groups;
  std::vector<size_t> group_of;
  for (int64_t i = 0; i < problem.num_sequences; ++i) {
    const int64_t parent = ParentOf(problem, i);
    group_of.push_back(parent < 0 ? groups.size() : group_of[static_cast<size_t>(parent)]);
    if (parent < 0) groups.emplace_back();
    groups[group_of.back()].push_back(i);
  }
  RunTasks(problem, std::move(groups), parallel_for,
           [&](const std::vector<int64_t>& group, int64_t kv_head, Scratch* scratch) {
             const BackwardTask first(problem, kernels, scratch, group[0], kv_head);
             first.Compute();
             for (size_t i = 1; i < group.size(); ++i) {
               BackwardTask(problem, kernels, scratch, group[i], kv_head).Compute();
             }
             first.Finish();
           });
}

void Run(const CausalAttentionForward& problem, const ParallelFor& parallel_for) {
  Run(problem, parallel_for, WidestInstructionSet());
}

void Run(const CausalAttentionBackward& problem, const ParallelFor& parallel_for) {
  Run(problem, parallel_for, WidestInstructionSet());
}

}  // namespace taopd::cpu
