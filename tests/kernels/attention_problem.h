// A layer of a model whose attention is tested, random rows for it, and attention by plain float64
// loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/stored.h"

namespace taopd::testing {

// A row of a sequence holds queries, keys and values as the projection of a fused layer gives them:
// [N + 2 K, D].
struct AttentionShape {
  DataType dtype = DataType::kFloat32;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_size = 16;
  float scale = 0.25f;
  int64_t sliding_window = 0;

  int64_t RowSize() const { return (num_heads + 2 * num_kv_heads) * head_size; }
  int64_t KeyColumn() const { return num_heads * head_size; }
  int64_t ValueColumn() const { return (num_heads + num_kv_heads) * head_size; }
};

inline std::string NameOf(const AttentionShape& shape) {
  return (shape.dtype == DataType::kFloat32 ? "float32 " : "bfloat16 ") +
         std::to_string(shape.num_heads) + "/" + std::to_string(shape.num_kv_heads) + " heads of " +
         std::to_string(shape.head_size) + ", window " + std::to_string(shape.sliding_window);
}

// Returns the rows of each sequence, [length, N + 2 K, D].
inline std::vector<Stored> RandomSequences(const AttentionShape& shape,
                                           const std::vector<int64_t>& lengths, uint64_t seed) {
  std::vector<Stored> sequences;
  for (int64_t length : lengths) {
    const uint64_t own_seed = 100 * seed + sequences.size();
    sequences.push_back(Normal(shape.dtype, length * shape.RowSize(), own_seed));
  }
  return sequences;
}

struct ExactAttention {
  std::vector<double> values;  // softmax(scale q k^T) v, [length, N, D]
  std::vector<double> sizes;   // sums of |p v|
};

// Computes every row of a sequence by the definition.
inline ExactAttention AttendExactly(const AttentionShape& shape, const std::vector<float>& rows) {
  const int64_t D = shape.head_size, length = static_cast<int64_t>(rows.size()) / shape.RowSize();
  ExactAttention exact;
  for (int64_t i = 0; i < length * shape.num_heads; ++i) {
    const int64_t position = i / shape.num_heads, head = i % shape.num_heads;
    const int64_t kv_column = head * shape.num_kv_heads / shape.num_heads * D;
    const int64_t first =
        shape.sliding_window == 0 ? 0 : std::max<int64_t>(0, position + 1 - shape.sliding_window);
    const float* const q = &rows[position * shape.RowSize() + head * D];
    std::vector<double> weights, values(D), sizes(D);
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t j = first; j <= position; ++j) {
      const float* const k = &rows[j * shape.RowSize() + shape.KeyColumn() + kv_column];
      double score = 0;
      for (int64_t d = 0; d < D; ++d) score += static_cast<double>(q[d]) * k[d];
      weights.push_back(score * shape.scale);
      largest = std::max(largest, weights.back());
    }
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (int64_t j = first; j <= position; ++j) {
      const float* const v = &rows[j * shape.RowSize() + shape.ValueColumn() + kv_column];
      for (int64_t d = 0; d < D; ++d) {
        const double term = weights[j - first] / total * v[d];
        values[d] += term;
        sizes[d] += std::abs(term);
      }
    }
    exact.values.insert(exact.values.end(), values.begin(), values.end());
    exact.sizes.insert(exact.sizes.end(), sizes.begin(), sizes.end());
  }
  return exact;
}

}  // namespace taopd::testing
