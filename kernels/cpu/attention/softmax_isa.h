// The softmax of attention_loops_isa.h: the weights of a row in one partition, and the merging of
// partitions.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention/attention_loops.h"
#include "kernels/cpu/attention/tile_product_isa.h"
#include "kernels/cpu/math/bfloat16.h"
#include "kernels/cpu/math/exp_parts.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// Positions of a partition, counted from its first; empty if begin >= end.
struct TokenRange {
  int64_t begin, end;

  TAOPD_ALWAYS_INLINE void Include(const TokenRange& other) {
    if (other.begin >= other.end) return;
    begin = begin < other.begin ? begin : other.begin;
    end = end > other.end ? end : other.end;
  }
};

// 2^x for x <= 0, like Exp2OfBounded; 0 below -127. Lanes that no row sees may contain anything. A
// NaN gives NaN.
TAOPD_ALWAYS_INLINE void Exp2OfNonPositive(const Floats* x, Floats* result) {
  const Floats smallest = Floats{} - 127.0f;
  const Floats bounded = *x < smallest ? smallest : *x;  // a NaN stays
  Exp2OfBounded<Words>(&bounded, result);
}

// Both reduce a vector in a fixed order.
TAOPD_ALWAYS_INLINE float MaxOfLanes(const Floats* vector) {
  float lanes[kLanes];
  Store(lanes, vector);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      lanes[i] = lanes[i] < lanes[i + half] ? lanes[i + half] : lanes[i];
    }
  }
  return lanes[0];
}
TAOPD_ALWAYS_INLINE float SumOfLanes(const Floats* vector) {
  float lanes[kLanes];
  Store(lanes, vector);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Lanes of the vector at `token` that are in the range keep their value; the others get `other`.
TAOPD_ALWAYS_INLINE void Select(TokenRange range, int64_t token, float other, Floats* vector) {
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const auto begin = static_cast<int32_t>(range.begin - token);
  const auto end = static_cast<int32_t>(range.end - token);
  const Floats others = Floats{} + other;
  *vector = (lane >= begin) & (lane < end) ? *vector : others;
}

// Turns the scores s of the positions that a row sees into weights p = exp(scale (s - max)), stored
// in the row as the product with the values reads them. Positions of the same step that the row
// does not see get a weight of 0. *max is the largest score, *total the sum of the weights.
template <typename Arithmetic>
__attribute__((noinline)) void Softmax(float* row, TokenRange range, float scale_log2e, float* max,
                                       float* total) {
  const int64_t begin = range.begin / kPanelWidth * kPanelWidth;
  Floats largest = Floats{} - __builtin_inff();
  for (int64_t token = begin; token < range.end; token += kPanelWidth) {
    Floats scores[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) Load(&scores[v], row + token + v * kLanes);
    if (token < range.begin || token + kPanelWidth > range.end) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Select(range, token + v * kLanes, -__builtin_inff(), &scores[v]);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) largest = largest < scores[v] ? scores[v] : largest;
  }
  const float row_max = MaxOfLanes(&largest);
  Floats sum = Floats{};
  for (int64_t token = begin; token < range.end; token += kPanelWidth) {
    Floats weights[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Load(&weights[v], row + token + v * kLanes);
      const Floats exponent = (weights[v] - row_max) * scale_log2e;
      Exp2OfNonPositive(&exponent, &weights[v]);
    }
    if (token < range.begin || token + kPanelWidth > range.end) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) Select(range, token + v * kLanes, 0.0f, &weights[v]);
    }
    Arithmetic::StoreWeights(weights, token, reinterpret_cast<uint32_t*>(row), &sum);
  }
  *max = row_max;
  *total = SumOfLanes(&sum);
}

// Merges a later partition into the state of a row. All merging happens here, so the arithmetic is
// the same wherever the partitions were computed.
__attribute__((noinline)) void MergeRow(float max, float total, const float* sums, int64_t size,
                                        float scale_log2e, float* state) {
  float* const seen = state + kStateHeader;
  if (state[1] == kNothingSeen) {
    state[0] = max;
    state[1] = total;
    __builtin_memcpy(seen, sums, size * sizeof(float));
    return;
  }
  const float larger = state[0] < max ? max : state[0];
  Floats before = Floats{} + (state[0] - larger) * scale_log2e;
  Floats later = Floats{} + (max - larger) * scale_log2e;
  Exp2OfNonPositive(&before, &before);
  Exp2OfNonPositive(&later, &later);
  state[0] = larger;
  state[1] = state[1] * before[0] + total * later[0];
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats old_sums, new_sums;
    Load(&old_sums, seen + i);
    Load(&new_sums, sums + i);
    old_sums = old_sums * before + new_sums * later;
    Store(seen + i, &old_sums);
  }
}

void Merge(const float* later, int64_t num_rows, int64_t head_size, float scale_log2e,
           float* states) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* const from = later + row * StateSize(head_size);
    if (from[1] == kNothingSeen) continue;
    MergeRow(from[0], from[1], from + kStateHeader, PaddedValueSize(head_size), scale_log2e,
             states + row * StateSize(head_size));
  }
}

void Clear(int64_t num_rows, int64_t head_size, float* states) {
  for (int64_t row = 0; row < num_rows; ++row)
    states[row * StateSize(head_size) + 1] = kNothingSeen;
}

template <typename Element>
TAOPD_ALWAYS_INLINE void FinishRow(const float* state, int64_t head_size, Element* out) {
  const float inverse = 1.0f / state[1];
  const float* const sums = state + kStateHeader;
#pragma GCC ivdep
  for (int64_t i = 0; i < head_size; ++i) Put(sums[i] * inverse, out + i);
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
