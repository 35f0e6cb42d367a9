#include "kernels/cpu/attention/causal/pair_tasks.h"

#include <algorithm>

namespace taopd::cpu {
namespace {

// The number of queries that are computed together. Scores past the diagonal are computed for the
// whole block, which costs short sequences more. The gradients of keys are read and written once
// per block, which costs long sequences more.
constexpr int64_t kMaxQueryRows = 128;
int64_t BlockRows(int64_t length) { return length <= 96 ? 32 : length <= 512 ? 64 : kMaxQueryRows; }

// The keys whose scores and gradients exist at a time in the backward pass: they stay in the
// second-level cache. A multiple of the keys whose products AMX sums up at a time.
constexpr int64_t kChunkKeys = 512;

const Bfloat16Bits* Bits(const void* data) { return static_cast<const Bfloat16Bits*>(data); }

// The rows of a matrix.
const std::vector<const Bfloat16Bits*>& RowsOf(const Bfloat16Bits* data, int64_t stride,
                                               int64_t num,
                                               std::vector<const Bfloat16Bits*>* rows) {
  rows->clear();
  for (int64_t i = 0; i < num; ++i) rows->push_back(data + i * stride);
  return *rows;
}

// Rounds the rows of a matrix of scores.
void Narrow(const float* scores, const QueryBlock& block, Bfloat16Bits* weights) {
  const LayerLoops& loops = BestLayerLoops(DataType::kBFloat16);
  for (int64_t i = 0; i < block.num; ++i) {
    loops.narrow(scores + i * PairHeadProducts::ScoreStride(block),
                 PairHeadProducts::PaddedKeys(block),
                 weights + i * PairHeadProducts::WeightStride(block));
  }
}

}  // namespace

const Bfloat16Bits* PairHeadProducts::PackKeys(const Bfloat16Bits* x, int64_t stride,
                                               int64_t length, CausalBuffer* buffer) const {
  const int64_t elements = PairPanelElements(D_);
  auto* const panels = buffer->Ensure<Bfloat16Bits>(NumPackedPanels(length) * elements);
  for (int64_t first = 0; first < length; first += kPanelOutputs) {
    // The last columns of the last panel may contain anything: their scores are not used.
    PackPairColumns(x + first * stride, stride, std::min(kPanelOutputs, length - first), D_,
                    /*column=*/0, panels + first / kPanelOutputs * elements);
  }
  return panels;
}

const Bfloat16Bits* PairHeadProducts::PackRows(const std::vector<const Bfloat16Bits*>& rows,
                                               CausalBuffer* buffer) const {
  const auto length = static_cast<int64_t>(rows.size());
  const int64_t elements = PairPanelElements(length);
  auto* const panels = buffer->Ensure<Bfloat16Bits>(NumPackedPanels(D_) * elements);
  for (int64_t d = 0; d < D_; d += kPanelOutputs) {
    PackPairRows(rows.data(), d, length, std::min(kPanelOutputs, D_ - d),
                 panels + d / kPanelOutputs * elements);
  }
  return panels;
}

void PairHeadProducts::MultiplyKeys(const Bfloat16Bits* a, int64_t stride, const Bfloat16Bits* keys,
                                    const QueryBlock& block, float* scores) const {
  gemm_.multiply_pairs(a, stride, keys + block.first_key / kPanelOutputs * PairPanelElements(D_),
                       block.num, PaddedKeys(block), D_, scores, ScoreStride(block),
                       /*accumulate=*/false);
}

void PairHeadProducts::MultiplyRows(const Bfloat16Bits* weights, const Bfloat16Bits* panels,
                                    int64_t length, const QueryBlock& block, bool accumulate,
                                    float* result) const {
  const int64_t num_keys = std::min(PaddedKeys(block), length - block.first_key);
  for (int64_t d = 0; d < D_; d += kPanelOutputs) {
    const Bfloat16Bits* const panel = panels + d / kPanelOutputs * PairPanelElements(length);
    gemm_.multiply_pairs(weights, WeightStride(block), panel + block.first_key * kPanelOutputs,
                         block.num, std::min(kPanelOutputs, D_ - d), num_keys, result + d, D_,
                         accumulate);
  }
}

void PairHeadProducts::AddTransposed(const Bfloat16Bits* weights, const Bfloat16Bits* rows,
                                     const QueryBlock& block, CausalScratch* scratch,
                                     float* sums) const {
  const auto& rows_of_weights = RowsOf(weights, WeightStride(block), block.num, &scratch->rows);
  auto* const factor =
      scratch->factors.Ensure<Bfloat16Bits>(gemm_.first_factor_elements(block.num));
  for (int64_t key = 0; key < block.num_keys(); key += kPanelOutputs) {
    const int64_t num = std::min(kPanelOutputs, block.num_keys() - key);
    gemm_.pack_first_factor(rows_of_weights.data(), key, block.num, num, factor);
    for (int64_t d = 0; d < D_; d += kPanelOutputs) {
      gemm_.add_transposed_pairs(factor, rows + d / kPanelOutputs * PairPanelElements(block.num),
                                 block.num, num, std::min(kPanelOutputs, D_ - d),
                                 sums + (block.first_key + key) * D_ + d, D_);
    }
  }
}

void PairForwardTask::Compute() const {
  const PlacedRows k = AllRows(problem_.k_TKD, problem_.k_stride, kv_head_);
  const Bfloat16Bits* keys =
      products_.PackKeys(Bits(k.data), k.stride, length_, &scratch_.keys_transposed);
  const PlacedRows v = AllRows(problem_.v_TKD, problem_.v_stride, kv_head_);
  const Bfloat16Bits* values =
      products_.PackRows(RowsOf(Bits(v.data), v.stride, length_, &scratch_.rows), &scratch_.values);
  for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
    ForBlocks(BlockRows(length_), kPanelOutputs,
              [&](const QueryBlock& block) { ComputeBlock(block, head, keys, values); });
  }
}

void PairForwardTask::ComputeBlock(const QueryBlock& block, int64_t head, const Bfloat16Bits* keys,
                                   const Bfloat16Bits* values) const {
  const int64_t stride = PairHeadProducts::ScoreStride(block);
  float* scores = scratch_.scores.Ensure<float>(block.num * stride);
  auto* weights =
      scratch_.weights.Ensure<Bfloat16Bits>(block.num * PairHeadProducts::WeightStride(block));
  float* result = scratch_.result.Ensure<float>(block.num * D_);
  const int64_t row = first_row_ + block.first;
  products_.MultiplyKeys(Bits(ElementAt(problem_.q_TND, row * problem_.q_stride + head * D_)),
                         problem_.q_stride, keys, block, scores);
  float sums[kMaxQueryRows];
  for (int64_t i = 0; i < block.num; ++i) {
    const float log_sum_exp =
        rows_.softmax(scores + i * stride, Begin(block, i), End(block, i),
                      PairHeadProducts::PaddedKeys(block), problem_.scale, &sums[i]);
    if (forward_.log_sum_exp_TN != nullptr) {
      forward_.log_sum_exp_TN[(row + i) * problem_.num_heads + head] = log_sum_exp;
    }
  }
  Narrow(scores, block, weights);
  products_.MultiplyRows(weights, values, length_, block, /*accumulate=*/false, result);
  for (int64_t i = 0; i < block.num; ++i) rows_.scale(result + i * D_, 1 / sums[i], D_);
  StoreRows(result, block.first, block.num, forward_.out_TND, forward_.out_stride, head);
}

void PairBackwardTask::Compute() const {
  const PlacedRows k = AllRows(problem_.k_TKD, problem_.k_stride, kv_head_);
  Panels panels;
  panels.keys = products_.PackKeys(Bits(k.data), k.stride, length_, &scratch_.keys_transposed);
  panels.rows_of_keys =
      products_.PackRows(RowsOf(Bits(k.data), k.stride, length_, &scratch_.rows), &scratch_.keys);
  const PlacedRows v = AllRows(problem_.v_TKD, problem_.v_stride, kv_head_);
  panels.values = products_.PackKeys(Bits(v.data), v.stride, length_, &scratch_.values_transposed);
  const KeyGradients sums = StartGradients();
  for (int64_t head = kv_head_ * group_; head < (kv_head_ + 1) * group_; ++head) {
    ForBlocks(BlockRows(length_), kPanelOutputs,
              [&](const QueryBlock& block) { ComputeBlock(block, head, panels, sums); });
  }
  StoreGradients(sums);
}

void PairBackwardTask::ComputeDeltas(const QueryBlock& block, int64_t head, float* deltas) const {
  const CausalAttentionBackward& p = backward_;
  float* const d_out = scratch_.gradient.Ensure<float>(D_);
  float* const out = scratch_.output.Ensure<float>(D_);
  for (int64_t i = 0; i < block.num; ++i) {
    const int64_t row = first_row_ + block.first + i;
    gemm_.widen(Bits(ElementAt(p.d_out_TND, row * p.d_out_stride + head * D_)), D_, d_out);
    gemm_.widen(Bits(ElementAt(p.out_TND, row * p.out_stride + head * D_)), D_, out);
    deltas[i] = rows_.dot(d_out, out, D_);
  }
}

void PairBackwardTask::ComputeBlock(const QueryBlock& block, int64_t head, const Panels& panels,
                                    const KeyGradients& sums) const {
  const CausalAttentionBackward& p = backward_;
  const int64_t row = first_row_ + block.first;
  float deltas[kMaxQueryRows];
  ComputeDeltas(block, head, deltas);
  Rows rows;
  rows.q = Bits(ElementAt(p.q_TND, row * p.q_stride + head * D_));
  rows.d_out = Bits(ElementAt(p.d_out_TND, row * p.d_out_stride + head * D_));
  rows.q_panel = products_.PackRows(RowsOf(rows.q, p.q_stride, block.num, &scratch_.rows),
                                    &scratch_.query_panels);
  rows.d_out_panel = products_.PackRows(
      RowsOf(rows.d_out, p.d_out_stride, block.num, &scratch_.rows), &scratch_.gradient_panels);
  rows.deltas = deltas;
  rows.log_sum_exp = p.log_sum_exp_TN + row * p.num_heads + head;
  float* const d_queries = scratch_.result.Ensure<float>(block.num * D_);
  for (int64_t first = block.first_key; first < block.end_key;) {
    const int64_t end = std::min(first / kChunkKeys * kChunkKeys + kChunkKeys, block.end_key);
    ComputeKeys({block.first, block.num, first, end}, rows, panels,
                /*is_first=*/first == block.first_key, sums, d_queries);
    first = end;
  }
  StoreRows(d_queries, block.first, block.num, p.d_q_TND, p.d_q_stride, head);
}

void PairBackwardTask::ComputeKeys(const QueryBlock& chunk, const Rows& rows, const Panels& panels,
                                   bool is_first, const KeyGradients& sums,
                                   float* d_queries) const {
  const CausalAttentionBackward& p = backward_;
  const int64_t stride = PairHeadProducts::ScoreStride(chunk);
  const int64_t padded = PairHeadProducts::PaddedKeys(chunk);
  const int64_t num_weights = chunk.num * PairHeadProducts::WeightStride(chunk);
  float* const scores = scratch_.scores.Ensure<float>(chunk.num * stride);
  float* const d_scores = scratch_.d_scores.Ensure<float>(chunk.num * stride);
  products_.MultiplyKeys(rows.q, p.q_stride, panels.keys, chunk, scores);
  products_.MultiplyKeys(rows.d_out, p.d_out_stride, panels.values, chunk, d_scores);
  for (int64_t i = 0; i < chunk.num; ++i) {
    const int64_t end = std::clamp<int64_t>(End(chunk, i), 0, padded);
    const int64_t begin = std::clamp<int64_t>(Begin(chunk, i), 0, end);
    rows_.gradient(scores + i * stride, d_scores + i * stride, begin, end, padded, p.scale,
                   rows.log_sum_exp[i * p.num_heads], rows.deltas[i]);
  }
  auto* const weights = scratch_.weights.Ensure<Bfloat16Bits>(num_weights);
  auto* const d_weights = scratch_.d_weights.Ensure<Bfloat16Bits>(num_weights);
  Narrow(scores, chunk, weights);
  Narrow(d_scores, chunk, d_weights);
  products_.MultiplyRows(d_weights, panels.rows_of_keys, length_, chunk, !is_first, d_queries);
  products_.AddTransposed(d_weights, rows.q_panel, chunk, &scratch_, sums.d_keys);
  products_.AddTransposed(weights, rows.d_out_panel, chunk, &scratch_, sums.d_values);
}

}  // namespace taopd::cpu
