// The loops of layer_loops.h, compiled once per instruction set (kernels/cpu/isa/isa.h). The loops
// are plain ones, written so that the compiler vectorizes them.
//
// Sums go to 16 lanes, and the lanes to one number in a fixed order, whatever the instruction set
// is.
#pragma once

#include <stdint.h>

#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/math/bfloat16.h"
#include "kernels/cpu/math/exp_parts.h"
#include "taopd/base/always_inline.h"
#include "taopd/layers/layer_math.h"

// Tells the compiler that the iterations of the next loop are independent: its rows do not overlap.
#define TAOPD_INDEPENDENT _Pragma("GCC ivdep")

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int kSumLanes = 16;
constexpr int64_t kSumBlock = 1024;  // elements of one float32 sum: 64 additions per lane

// Returns the number that results from storing and loading `value`.
template <typename Element>
TAOPD_ALWAYS_INLINE float Round(float value) {
  Element stored;
  Put(value, &stored);
  return Widen(stored);
}

// Returns e / (1 + e) for x <= 0 and 1 / (1 + e) for x > 0, with e = exp(-|x|).
TAOPD_ALWAYS_INLINE float Sigmoid(float x) {
  const float e = ExpOfNonPositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (e + 1.0f);
}

TAOPD_ALWAYS_INLINE float InverseRms(double sum_of_squares, int64_t n, float eps) {
  return static_cast<float>(
      1 / __builtin_sqrt(sum_of_squares / static_cast<double>(n) + static_cast<double>(eps)));
}

// Returns the sum of term(i) for i in [0, n).
template <typename Term>
TAOPD_ALWAYS_INLINE double SumInLanes(int64_t n, const Term& term) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = n - begin < kSumBlock ? n : begin + kSumBlock;
    float lanes[kSumLanes] = {};
    int64_t i = begin;
    for (; i + kSumLanes <= end; i += kSumLanes) {
      for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(i + lane);
    }
    for (; i < end; ++i) lanes[i % kSumLanes] += term(i);
    for (int lane = 0; lane < kSumLanes; ++lane) total += lanes[lane];
  }
  return total;
}

template <typename Element>
struct Loops {
  using In = const Element*;
  using Out = Element*;

  static double SumOfSquares(Row row, int64_t n) {
    const In x = static_cast<const Element*>(row);
    return SumInLanes(
        n, [&](int64_t i) __attribute__((always_inline)) { return Widen(x[i]) * Widen(x[i]); });
  }

  // The normalized row is rounded before it is multiplied by its weight.
  static TAOPD_ALWAYS_INLINE float Normalize(Element x, float inverse_rms, Element weight) {
    return Round<Element>(Widen(x) * inverse_rms) * Widen(weight);
  }

  static float RmsNorm(Row x_row, Row added_row, Row weight_row, int64_t n, float eps,
                       MutableRow sum_row, MutableRow normed_row) {
    if (added_row != nullptr) {
      const In x = static_cast<const Element*>(x_row),
               added = static_cast<const Element*>(added_row);
      const Out sum = static_cast<Element*>(sum_row);
      TAOPD_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) Put(Widen(x[i]) + Widen(added[i]), sum + i);
      x_row = sum_row;
    }
    const In x = static_cast<const Element*>(x_row),
             weight = static_cast<const Element*>(weight_row);
    const Out normed = static_cast<Element*>(normed_row);
    const float inverse_rms = InverseRms(SumOfSquares(x_row, n), n, eps);
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) Put(Normalize(x[i], inverse_rms, weight[i]), normed + i);
    return inverse_rms;
  }

  // d(i) is the gradient with respect to the norm's output. `upstream`, which may be null, is added
  // to the result.
  template <typename Gradient>
  static TAOPD_ALWAYS_INLINE void NormBackward(const Element* x_row, const Element* weight_row,
                                               float inverse_rms, const Gradient& d,
                                               const Element* upstream_row, int64_t n,
                                               Element* d_x_row, float* partial_row) {
    const In x = x_row, weight = weight_row, upstream = upstream_row;
    const Out d_x = d_x_row;
    float* const partial = partial_row;
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) partial[i] += d(i) * (Widen(x[i]) * inverse_rms);
    const double dot = SumInLanes(
        n, [&](int64_t i) __attribute__((always_inline)) {
          return d(i) * (Widen(x[i]) * inverse_rms) * Widen(weight[i]);
        });
    const auto mean = static_cast<float>(dot / static_cast<double>(n));
    const auto gradient = [&](int64_t i) __attribute__((always_inline)) {
      float result;
      RmsNormGradient(d(i), Widen(weight[i]), Widen(x[i]) * inverse_rms, mean, inverse_rms,
                      &result);
      return result;
    };
    if (upstream == nullptr) {
      TAOPD_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) Put(gradient(i), d_x + i);
      return;
    }
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) Put(gradient(i) + Widen(upstream[i]), d_x + i);
  }

  static void RmsNormBackward(Row x, Row weight, float inverse_rms, Row d_normed_row, Row d_sum,
                              int64_t n, MutableRow d_x, float* partial_weight) {
    const In d_normed = static_cast<const Element*>(d_normed_row);
    NormBackward(
        static_cast<const Element*>(x), static_cast<const Element*>(weight),
        inverse_rms, [&](int64_t i) __attribute__((always_inline)) { return Widen(d_normed[i]); },
        static_cast<const Element*>(d_sum), n, static_cast<Element*>(d_x), partial_weight);
  }

  // x cos is rounded before the other term is added.
  static TAOPD_ALWAYS_INLINE float RotateOne(float x, float other, Element cos, Element sin) {
    return Round<Element>(x * Widen(cos)) + other * Widen(sin);
  }

  static float Rotate(Row x_row, Row weight_row, Row cos_row, Row sin_row, int64_t n, float eps,
                      MutableRow out_row) {
    const int64_t half = n / 2;
    const In x = static_cast<const Element*>(x_row), cos = static_cast<const Element*>(cos_row),
             sin = static_cast<const Element*>(sin_row);
    const In x_2 = x + half, cos_2 = cos + half, sin_2 = sin + half;
    const Out out = static_cast<Element*>(out_row), out_2 = static_cast<Element*>(out_row) + half;
    if (weight_row == nullptr) {
      TAOPD_INDEPENDENT
      for (int64_t i = 0; i < half; ++i) {
        const float first = Widen(x[i]), second = Widen(x_2[i]);
        Put(RotateOne(first, second, cos[i], sin[i]), out + i);
        Put(RotateOne(second, first, cos_2[i], sin_2[i]), out_2 + i);
      }
      return 1.0f;
    }
    const In weight = static_cast<const Element*>(weight_row), weight_2 = weight + half;
    const float inverse_rms = InverseRms(SumOfSquares(x_row, n), n, eps);
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < half; ++i) {
      const float first = Round<Element>(Normalize(x[i], inverse_rms, weight[i]));
      const float second = Round<Element>(Normalize(x_2[i], inverse_rms, weight_2[i]));
      Put(RotateOne(first, second, cos[i], sin[i]), out + i);
      Put(RotateOne(second, first, cos_2[i], sin_2[i]), out_2 + i);
    }
    return inverse_rms;
  }

  static void RotateBackward(Row x, Row weight, float inverse_rms, Row cos_row, Row sin_row,
                             Row d_out_row, int64_t n, MutableRow d_x_row, float* scratch,
                             float* partial_weight) {
    const In cos = static_cast<const Element*>(cos_row), sin = static_cast<const Element*>(sin_row),
             d_out = static_cast<const Element*>(d_out_row);
    const int64_t half = n / 2;
    float* const d_row = scratch;
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < half; ++i) {
      UnrotatePair(Widen(d_out[i]), Widen(d_out[half + i]), Widen(cos[i]), Widen(cos[half + i]),
                   Widen(sin[i]), Widen(sin[half + i]), d_row + i, d_row + half + i);
    }
    if (weight == nullptr) {
      Narrow(scratch, n, d_x_row);
      return;
    }
    NormBackward(
        static_cast<const Element*>(x), static_cast<const Element*>(weight),
        inverse_rms, [&](int64_t i) __attribute__((always_inline)) { return d_row[i]; }, nullptr, n,
        static_cast<Element*>(d_x_row), partial_weight);
  }

  static void SwiGlu(Row gate_row, Row up_row, int64_t n, MutableRow y_row) {
    const In gate = static_cast<const Element*>(gate_row), up = static_cast<const Element*>(up_row);
    const Out y = static_cast<Element*>(y_row);
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float g = Widen(gate[i]);
      Put(Round<Element>(g * Sigmoid(g)) * Widen(up[i]), y + i);
    }
  }

  static void SwiGluBackward(Row gate_row, Row up_row, Row d_y_row, int64_t n,
                             MutableRow d_gate_row, MutableRow d_up_row) {
    const In gate = static_cast<const Element*>(gate_row), up = static_cast<const Element*>(up_row),
             d_y = static_cast<const Element*>(d_y_row);
    const Out d_gate = static_cast<Element*>(d_gate_row), d_up = static_cast<Element*>(d_up_row);
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      const float g = Widen(gate[i]);
      float dg, du;
      SwiGluGradient(g, Widen(up[i]), Sigmoid(g), Widen(d_y[i]), &dg, &du);
      Put(dg, d_gate + i);
      Put(du, d_up + i);
    }
  }

  static void Narrow(const float* from_row, int64_t n, MutableRow to_row) {
    const float* const from = from_row;
    const Out to = static_cast<Element*>(to_row);
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) Put(from[i], to + i);
  }

  // The update without stochastic rounding: float32 moments and a master.
  template <bool kBfloat16Copy>
  static TAOPD_ALWAYS_INLINE void AdamWLoop(const AdamWFactors<float>& factors, float keep,
                                            const AdamWElements& elements) {
    const In gradient = static_cast<const Element*>(elements.gradient);
    float* const master = elements.master;
    float* const exp_avg = static_cast<float*>(elements.exp_avg);
    float* const exp_avg_sq = static_cast<float*>(elements.exp_avg_sq);
    uint16_t* const bfloat16 = elements.bfloat16;
    const int64_t n = elements.size;
    const AdamWFactors<float> f = factors;
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      float x = master[i], m = exp_avg[i], v = exp_avg_sq[i];
      AdamWMoments(f, Widen(gradient[i]), &m, &v);
      AdamWParameter(f, keep, m, __builtin_sqrtf(v), &x);
      master[i] = x;
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      if (kBfloat16Copy) Put(x, bfloat16 + i);
    }
  }

  // The number of elements that are updated at a time, in float32 arrays. The compiler does not
  // vectorize a loop that loads, computes, rounds and stores all at once.
  static constexpr int64_t kChunk = 512;

  template <typename Stored>
  static TAOPD_ALWAYS_INLINE void CopyAll(const Stored* from, int64_t n, float* to) {
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i] = Widen(from[i]);
  }
  // Writes the 32 random bits of each of n elements.
  static TAOPD_ALWAYS_INLINE void DrawAll(uint64_t key, uint32_t first, int64_t n,
                                          uint32_t* random) {
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      random[i] = AdamWRandomBits(key, first + static_cast<uint32_t>(i));
    }
  }
  // Rounds stochastically with 16 of the random bits, beginning at bit `shift`.
  static TAOPD_ALWAYS_INLINE void RoundAll(const float* from, const uint32_t* random, int shift,
                                           int64_t n, uint16_t* to) {
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<uint16_t>(
          RoundToBfloat16(__builtin_bit_cast(uint32_t, from[i]), (random[i] >> shift) & 0xffff));
    }
  }

  // Gives the same numbers as AdamWLoop where the storage is the same.
  template <typename Moment>
  static TAOPD_ALWAYS_INLINE void AdamWChunk(const AdamWFactors<float>& factors, float keep,
                                             const AdamWElements& elements, int64_t begin,
                                             int64_t n) {
    const In gradient = static_cast<const Element*>(elements.gradient) + begin;
    Moment* const exp_avg = static_cast<Moment*>(elements.exp_avg) + begin;
    Moment* const exp_avg_sq = static_cast<Moment*>(elements.exp_avg_sq) + begin;
    const uint32_t first = elements.first_element + static_cast<uint32_t>(begin);
    const bool has_master = elements.master != nullptr;
    float x[kChunk], m[kChunk], v[kChunk];
    uint32_t random[kChunk];
    if (has_master) {
      CopyAll(elements.master + begin, n, x);
    } else {
      CopyAll(elements.bfloat16 + begin, n, x);
    }
    CopyAll(exp_avg, n, m);
    CopyAll(exp_avg_sq, n, v);
    const AdamWFactors<float> f = factors;
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      AdamWMoments(f, Widen(gradient[i]), m + i, v + i);
      AdamWParameter(f, keep, m[i], __builtin_sqrtf(v[i]), x + i);
    }
    if constexpr (sizeof(Moment) == 2) {
      DrawAll(elements.random_key, first, n, random);
      RoundAll(m, random, 0, n, exp_avg);
      RoundAll(v, random, 16, n, exp_avg_sq);
    } else {
      CopyAll(m, n, exp_avg);
      CopyAll(v, n, exp_avg_sq);
    }
    if (!has_master) {
      DrawAll(elements.weight_key, first, n, random);
      RoundAll(x, random, 0, n, elements.bfloat16 + begin);
      return;
    }
    CopyAll(x, n, elements.master + begin);
    if (elements.bfloat16 == nullptr) return;
    TAOPD_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) Put(x[i], elements.bfloat16 + begin + i);
  }

  static void AdamW(const AdamWFactors<float>& factors, float keep, const AdamWElements& elements) {
    if (!elements.bfloat16_moments && elements.master != nullptr) {
      if (elements.bfloat16 != nullptr) {
        AdamWLoop<true>(factors, keep, elements);
      } else {
        AdamWLoop<false>(factors, keep, elements);
      }
      return;
    }
    for (int64_t begin = 0; begin < elements.size; begin += kChunk) {
      const int64_t n = elements.size - begin < kChunk ? elements.size - begin : kChunk;
      if (elements.bfloat16_moments) {
        AdamWChunk<uint16_t>(factors, keep, elements, begin, n);
      } else {
        AdamWChunk<float>(factors, keep, elements, begin, n);
      }
    }
  }
};

template <typename Element>
constexpr LayerLoops Table() {
  using L = Loops<Element>;
  return {L::RmsNorm,        L::RmsNormBackward, L::Rotate,       L::RotateBackward, L::SwiGlu,
          L::SwiGluBackward, L::Narrow,          L::SumOfSquares, L::AdamW};
}

}  // namespace

const LayerLoops kFloat32Loops = Table<float>();
const LayerLoops kBfloat16Loops = Table<uint16_t>();

}  // namespace taopd::cpu::TAOPD_ISA

#undef TAOPD_INDEPENDENT
