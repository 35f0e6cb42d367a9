// The loops of weight_row.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/isa/compiled_isa.h"
#include "kernels/cpu/math/exp_parts.h"
#include "kernels/cpu/math/weight_row.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int kRegisters = kWeightLanes / kLanes;  // registers that hold the 16 lanes of a sum

constexpr float kMinusInfinity = -__builtin_inff();

// Returns a bit for each lane whose int is all ones.
TAOPD_ALWAYS_INLINE uint32_t BitsOf(const Ints* lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)*lanes, (__m512i)*lanes);
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)*lanes));
#elif defined(__x86_64__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)*lanes));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (*lanes)[lane] ? 1u << lane : 0u;
  return bits;
#endif
}

// 2^y for y <= 0, like Exp2OfBounded; 0 below -126.5.
TAOPD_ALWAYS_INLINE void Exp2OfNonPositive(Floats* y_and_exp) {
  const Floats lowest = Floats{} - 127.0f;
  const Floats y = *y_and_exp > lowest ? *y_and_exp : lowest;
  Exp2OfBounded<Words>(&y, y_and_exp);
}

// Returns 16 numbers: the first num are those of z, and the others are `filler`.
TAOPD_ALWAYS_INLINE const float* Padded(const float* z, int64_t num, float filler, float* copy) {
  if (num >= kWeightLanes) return z;
  for (int i = 0; i < kWeightLanes; ++i) copy[i] = i < num ? z[i] : filler;
  return copy;
}

TAOPD_ALWAYS_INLINE double SumOfLanes(const Floats* lanes) {
  double sum = 0;
  for (int r = 0; r < kRegisters; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[r][lane];
  }
  return sum;
}

float LaneMax(const float* z, int64_t n, float* lane_max, bool* valid) {
  Ints all_valid = Ints{} - 1;
  Floats row_max = Floats{} + kMinusInfinity;
  for (int64_t begin = 0; begin < n; begin += kWeightBlock) {
    const int64_t end = n - begin < kWeightBlock ? n : begin + kWeightBlock;
    Floats high[kRegisters];
    for (int r = 0; r < kRegisters; ++r) high[r] = Floats{} + kMinusInfinity;
    for (int64_t i = begin; i < end; i += kWeightLanes) {
      float copy[kWeightLanes];
      const float* from = Padded(z + i, end - i, kMinusInfinity, copy);
      for (int r = 0; r < kRegisters; ++r) {
        Floats v;
        Load(&v, from + r * kLanes);
        all_valid &= v < __builtin_inff();  // false for a NaN
        high[r] = v > high[r] ? v : high[r];
      }
    }
    for (int r = 0; r < kRegisters; ++r) {
      Store(lane_max + r * kLanes, &high[r]);
      row_max = high[r] > row_max ? high[r] : row_max;
    }
    lane_max += kWeightLanes;
  }
  float result = kMinusInfinity;
  *valid = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    result = row_max[lane] > result ? row_max[lane] : result;
    *valid = *valid && all_valid[lane] != 0;
  }
  return result;
}

template <bool kStored>
TAOPD_ALWAYS_INLINE void WeightLoop(const float* z, int64_t n, float shift, float scale, float* w,
                                    double* block_sums) {
  const float scale_to_log2 = scale * 1.44269504088896341f;
  for (int64_t begin = 0; begin < n; begin += kWeightBlock) {
    const int64_t end = n - begin < kWeightBlock ? n : begin + kWeightBlock;
    Floats sum[kRegisters] = {};
    for (int64_t i = begin; i < end; i += kWeightLanes) {
      float copy[kWeightLanes];
      const float* from = Padded(z + i, end - i, kMinusInfinity, copy);
      const bool whole = end - i >= kWeightLanes;
      for (int r = 0; r < kRegisters; ++r) {
        Floats v;
        Load(&v, from + r * kLanes);
        v = (v - shift) * scale_to_log2;
        Exp2OfNonPositive(&v);
        sum[r] += v;
        if (kStored) Store((whole ? w + i : copy) + r * kLanes, &v);
      }
      if (kStored && !whole) {
        for (int64_t j = 0; j < end - i; ++j) w[i + j] = copy[j];
      }
    }
    *block_sums++ = SumOfLanes(sum);
  }
}

void Weights(const float* z, int64_t n, float shift, float scale, float* w, double* block_sums) {
  if (w == nullptr) {
    WeightLoop<false>(z, n, shift, scale, nullptr, block_sums);
  } else {
    WeightLoop<true>(z, n, shift, scale, w, block_sums);
  }
}

double WeightAtLeast(const float* z, const float* w, int64_t n, float threshold) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kWeightBlock) {
    const int64_t end = n - begin < kWeightBlock ? n : begin + kWeightBlock;
    Floats sum[kRegisters] = {};
    for (int64_t i = begin; i < end; i += kWeightLanes) {
      float copy_z[kWeightLanes], copy_w[kWeightLanes];
      const float* from_z = Padded(z + i, end - i, kMinusInfinity, copy_z);
      const float* from_w = Padded(w + i, end - i, 0, copy_w);
      for (int r = 0; r < kRegisters; ++r) {
        Floats v, weight;
        Load(&v, from_z + r * kLanes);
        Load(&weight, from_w + r * kLanes);
        sum[r] += v >= threshold ? weight : Floats{};
      }
    }
    total += SumOfLanes(sum);
  }
  return total;
}

int64_t Split(const SplitRow& job) {
  double *above_sums = job.above_sums, *band_sums = job.band_sums;
  int64_t count = 0;
  for (int64_t begin = 0; begin < job.n; begin += kWeightBlock) {
    const int64_t end = job.n - begin < kWeightBlock ? job.n : begin + kWeightBlock;
    Floats above[kRegisters] = {}, band[kRegisters] = {};
    for (int64_t i = begin; i < end; i += kWeightLanes) {
      float copy_z[kWeightLanes], copy_w[kWeightLanes];
      // A NaN is in no set.
      const float* from_z = Padded(job.z + i, end - i, __builtin_nanf(""), copy_z);
      const float* from_w = Padded(job.w + i, end - i, 0, copy_w);
      uint32_t bits = 0;
      for (int r = 0; r < kRegisters; ++r) {
        Floats v, weight;
        Load(&v, from_z + r * kLanes);
        Load(&weight, from_w + r * kLanes);
        above[r] += v >= job.high ? weight : Floats{};
        const Ints in_band = (v >= job.low) & (v < job.high);
        band[r] += in_band ? weight : Floats{};
        bits |= BitsOf(&in_band) << (r * kLanes);
      }
      if (count < job.capacity) {
        int32_t* to = job.band + count;
        for (uint32_t left = bits; left != 0; left &= left - 1)
          *to++ = static_cast<int32_t>(i) + __builtin_ctz(left);
      }
      count += __builtin_popcount(bits);
    }
    *above_sums++ = SumOfLanes(above);
    *band_sums++ = SumOfLanes(band);
  }
  return count;
}

}  // namespace

const WeightRow kWeightRow = {LaneMax, Weights, WeightAtLeast, Split};

}  // namespace taopd::cpu::TAOPD_ISA
