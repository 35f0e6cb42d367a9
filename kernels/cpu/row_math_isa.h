// The loops of row_math.h. Included once per instruction set, by a file that defines TAOPD_ISA as
// the namespace and is compiled with that set's flags. Includes nothing with inline functions of
// its own: those would be compiled for that set and could be picked by the linker for all.
#pragma once

#include <stdint.h>

#include "kernels/cpu/row_math.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kBlock = 1024;  // float32 partial sums: 64 additions per lane

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));

constexpr float kInfinity = __builtin_inff();

// exp(x) for x <= 0, within 2 ulp; 0 below -87.3, where float32 has no normal numbers left.
// x = n log 2 + r with |r| <= log(2) / 2, exp(r) by its Taylor polynomial of degree 7 (remainder
// below 6e-9 of the value), 2^n by the exponent bits.
inline __attribute__((always_inline)) void ExpOfNonPositive(Floats* x_and_exp) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLog2High = 0.693359375f;  // 9 bits: n * kLog2High is exact
  constexpr float kLog2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kSmallest = -87.3f;
  const Floats x = *x_and_exp;
  const Ints is_zero = x < kSmallest;
  const Floats bounded = is_zero ? Floats{} : x;  // a NaN stays
  const Floats n = (bounded * kLog2e + kRound) - kRound;
  const Floats r = (bounded - n * kLog2High) - n * kLog2Low;
  Floats e = r * (1.0f / 5040) + (1.0f / 720);
  e = e * r + (1.0f / 120);
  e = e * r + (1.0f / 24);
  e = e * r + (1.0f / 6);
  e = e * r + 0.5f;
  e = e * r * r + r + 1.0f;
  // A NaN's integer is unspecified but its product with anything is NaN.
  const Ints exponent = __builtin_convertvector(n, Ints);
  const Floats power = (Floats)((exponent + 127) << 23);
  *x_and_exp = is_zero ? Floats{} : e * power;
}

inline __attribute__((always_inline)) void Load(Floats* lanes, const float* z) {
  __builtin_memcpy(lanes, z, sizeof(Floats));
}
inline __attribute__((always_inline)) void Store(float* z, const Floats* lanes) {
  __builtin_memcpy(z, lanes, sizeof(Floats));
}
// The last, partial vector, filled up with `filler`.
inline __attribute__((always_inline)) void LoadPart(Floats* lanes, const float* z, int64_t num,
                                                    float filler) {
  for (int i = 0; i < kLanes; ++i) (*lanes)[i] = i < num ? z[i] : filler;
}

float Max(const float* z, int64_t n) {
  Floats high = Floats{} - kInfinity;
  Floats v;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Load(&v, z + i);
    high = v > high ? v : high;
  }
  if (i < n) {
    LoadPart(&v, z + i, n - i, -kInfinity);
    high = v > high ? v : high;
  }
  float result = -kInfinity;
  for (int lane = 0; lane < kLanes; ++lane) result = high[lane] > result ? high[lane] : result;
  return result;
}

void TileMax(const float* z, int64_t n, float* tile_max) {
  for (int64_t i = 0; i < n; i += kTileSize) {
    *tile_max++ = Max(z + i, n - i < kTileSize ? n - i : kTileSize);
  }
}

template <bool kWrite>
inline __attribute__((always_inline)) ExpSums SumExpLoop(const float* z, float* out, int64_t n,
                                                         float shift, float scale) {
  ExpSums sums;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    Floats sum = Floats{};
    Floats sum_x = Floats{};
    for (int64_t i = begin; i < end; i += kLanes) {
      Floats v;
      const bool whole = i + kLanes <= end;
      if (whole) {
        Load(&v, z + i);
      } else {
        LoadPart(&v, z + i, end - i, -kInfinity);
      }
      const Floats x = (v - shift) * scale;
      Floats e = x;
      ExpOfNonPositive(&e);
      sum += e;
      sum_x += e * (x < -128.0f ? Floats{} : x);  // not 0 * -inf
      if (!kWrite) continue;
      if (whole) {
        Store(out + i, &e);
      } else {
        for (int64_t lane = 0; lane < end - i; ++lane) out[i + lane] = e[lane];
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      sums.sum_exp += sum[lane];
      sums.sum_exp_x += sum_x[lane];
    }
  }
  return sums;
}

ExpSums SumExp(const float* z, int64_t n, float shift, float scale) {
  return SumExpLoop<false>(z, nullptr, n, shift, scale);
}

ExpSums ExpInPlace(float* z, int64_t n, float shift, float scale) {
  return SumExpLoop<true>(z, z, n, shift, scale);
}

void Scale(float* z, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) z[i] *= factor;
}

int64_t CountAtLeast(const float* z, int64_t n, float threshold) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    int32_t in_block = 0;
    for (int64_t i = begin; i < end; ++i) in_block += z[i] >= threshold;
    count += in_block;
  }
  return count;
}

}  // namespace

extern const RowMath kRowMath;
const RowMath kRowMath = {TAOPD_ISA_NAME, Max, TileMax, SumExp, ExpInPlace, Scale, CountAtLeast};

}  // namespace taopd::cpu::TAOPD_ISA
