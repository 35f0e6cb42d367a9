#include "kernels/cpu/attention/causal/float_tasks.h"

#include <algorithm>

#include "taopd/base/round_up.h"

namespace taopd::cpu {
namespace {

// The number of queries that are computed together. Blocks of short sequences are smaller, because
// scores past the diagonal are computed for the whole block.
constexpr int64_t kQueryRows = 48, kShortQueryRows = 24, kShortLength = 96;

int64_t BlockRows(int64_t length) { return length <= kShortLength ? kShortQueryRows : kQueryRows; }

}  // namespace

FloatHeadProducts::Rows FloatHeadProducts::Widened(const char* from, int64_t stride, int64_t num,
                                                   CausalBuffer* buffer) const {
  if (dtype_ == DataType::kFloat32) return {reinterpret_cast<const float*>(from), stride};
  float* to = buffer->Ensure<float>(num * D_);
  for (int64_t i = 0; i < num; ++i) {
    gemm_.widen(reinterpret_cast<const Bfloat16Bits*>(from) + i * stride, D_, to + i * D_);
  }
  return {to, D_};
}

const float* FloatHeadProducts::Pack(const void* x, int64_t stride, int64_t length, bool transposed,
                                     CausalBuffer* buffer) const {
  const int64_t num_k = transposed ? D_ : length, num_n = transposed ? length : D_;
  float* panels = buffer->Ensure<float>(RoundUp(num_n, width_) * num_k);
  const auto order = transposed ? ElementOrder::kColumns : ElementOrder::kRows;
  if (dtype_ == DataType::kBFloat16) {
    gemm_.pack_bf16(static_cast<const Bfloat16Bits*>(x), order, stride, num_k, num_n, panels);
  } else {
    gemm_.pack(static_cast<const float*>(x), order, stride, num_k, num_n, panels);
  }
  return panels;
}

void FloatHeadProducts::MultiplyKeys(const Rows& a, const float* transposed,
                                     const QueryBlock& block, float* scores) const {
  gemm_.multiply(a.data, ElementOrder::kRows, a.stride, transposed + block.first_key * D_,
                 block.num, block.num_keys(), D_, scores, block.num_keys(), /*accumulate=*/false);
}

void FloatHeadProducts::MultiplyRows(const float* weights, const float* panels, int64_t length,
                                     const QueryBlock& block, float* result) const {
  for (int64_t d = 0; d < D_; d += width_) {
    gemm_.multiply(weights, ElementOrder::kRows, block.num_keys(),
                   panels + d * length + block.first_key * width_, block.num,
                   std::min(width_, D_ - d), block.num_keys(), result + d, D_,
                   /*accumulate=*/false);
  }
}

void FloatHeadProducts::AddTransposed(const float* weights, const Rows& rows,
                                      const QueryBlock& block, CausalBuffer* buffer,
                                      float* sums) const {
  float* panels = buffer->Ensure<float>(RoundUp(D_, width_) * block.num);
  gemm_.pack(rows.data, ElementOrder::kRows, rows.stride, block.num, D_, panels);
  gemm_.multiply(weights, ElementOrder::kColumns, block.num_keys(), panels, block.num_keys(), D_,
                 block.num, sums + block.first_key * D_, D_, /*accumulate=*/true);
}

void FloatForwardTask::Compute() const {
  const PlacedRows k = AllRows(problem_.k_TKD, problem_.k_stride, kv_head_);
  const float* keys = products_.Pack(k.data, k.stride, length_, true, &scratch_.keys_transposed);
  const PlacedRows v = AllRows(problem_.v_TKD, problem_.v_stride, kv_head_);
  const float* values = products_.Pack(v.data, v.stride, length_, false, &scratch_.values);
  for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
    ForBlocks(BlockRows(length_), key_multiple_,
              [&](const QueryBlock& block) { ComputeBlock(block, head, keys, values); });
  }
}

void FloatForwardTask::ComputeBlock(const QueryBlock& block, int64_t head, const float* keys,
                                    const float* values) const {
  const FloatHeadProducts::Rows q = products_.Widened(
      ElementAt(problem_.q_TND, (first_row_ + block.first) * problem_.q_stride + head * D_),
      problem_.q_stride, block.num, &scratch_.queries);
  float* scores = scratch_.scores.Ensure<float>(block.num * block.num_keys());
  float* result = scratch_.result.Ensure<float>(block.num * D_);
  products_.MultiplyKeys(q, keys, block, scores);
  float sums[kQueryRows];
  for (int64_t i = 0; i < block.num; ++i) {
    const float log_sum_exp =
        rows_.softmax(scores + i * block.num_keys(), Begin(block, i), End(block, i),
                      block.num_keys(), problem_.scale, &sums[i]);
    if (forward_.log_sum_exp_TN != nullptr) {
      forward_.log_sum_exp_TN[(first_row_ + block.first + i) * problem_.num_heads + head] =
          log_sum_exp;
    }
  }
  products_.MultiplyRows(scores, values, length_, block, result);
  for (int64_t i = 0; i < block.num; ++i) rows_.scale(result + i * D_, 1 / sums[i], D_);
  StoreRows(result, block.first, block.num, forward_.out_TND, forward_.out_stride, head);
}

void FloatBackwardTask::Compute() const {
  const PlacedRows k = AllRows(problem_.k_TKD, problem_.k_stride, kv_head_);
  Panels panels;
  panels.keys_transposed =
      products_.Pack(k.data, k.stride, length_, true, &scratch_.keys_transposed);
  panels.keys = products_.Pack(k.data, k.stride, length_, false, &scratch_.keys);
  const PlacedRows v = AllRows(problem_.v_TKD, problem_.v_stride, kv_head_);
  panels.values_transposed =
      products_.Pack(v.data, v.stride, length_, true, &scratch_.values_transposed);
  const KeyGradients sums = StartGradients();
  for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
    ForBlocks(BlockRows(length_), key_multiple_,
              [&](const QueryBlock& block) { ComputeBlock(block, head, panels, sums); });
  }
  StoreGradients(sums);
}

void FloatBackwardTask::ComputeBlock(const QueryBlock& block, int64_t head, const Panels& panels,
                                     const KeyGradients& sums) const {
  const CausalAttentionBackward& p = backward_;
  const int64_t num_keys = block.num_keys(), row = first_row_ + block.first, column = head * D_;
  const auto rows = [&](const void* x, int64_t stride, CausalBuffer* buffer) {
    return products_.Widened(ElementAt(x, row * stride + column), stride, block.num, buffer);
  };
  const FloatHeadProducts::Rows q = rows(p.q_TND, p.q_stride, &scratch_.queries);
  const FloatHeadProducts::Rows d_out = rows(p.d_out_TND, p.d_out_stride, &scratch_.gradient);
  const FloatHeadProducts::Rows out = rows(p.out_TND, p.out_stride, &scratch_.output);
  float* scores = scratch_.scores.Ensure<float>(block.num * num_keys);
  float* d_scores = scratch_.d_scores.Ensure<float>(block.num * num_keys);
  products_.MultiplyKeys(q, panels.keys_transposed, block, scores);
  products_.MultiplyKeys(d_out, panels.values_transposed, block, d_scores);
  for (int64_t i = 0; i < block.num; ++i) {
    const float delta = rows_.dot(d_out.data + i * d_out.stride, out.data + i * out.stride, D_);
    rows_.gradient(scores + i * num_keys, d_scores + i * num_keys, Begin(block, i), End(block, i),
                   num_keys, p.scale, p.log_sum_exp_TN[(row + i) * p.num_heads + head], delta);
  }
  float* d_queries = scratch_.result.Ensure<float>(block.num * D_);
  products_.MultiplyRows(d_scores, panels.keys, length_, block, d_queries);
  StoreRows(d_queries, block.first, block.num, p.d_q_TND, p.d_q_stride, head);
  products_.AddTransposed(d_scores, q, block, &scratch_.query_panels, sums.d_keys);
  products_.AddTransposed(scores, d_out, block, &scratch_.gradient_panels, sums.d_values);
}

}  // namespace taopd::cpu
