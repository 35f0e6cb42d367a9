// Seeded random numbers, bfloat16 as the kernels take it, and the rounding of float32 sums.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cpu/gemm/panel_gemm.h"

namespace taopd::testing {

inline std::vector<float> NormalFloats(int64_t num, uint64_t seed, float deviation = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(num);
  for (float& value : values) value = normal(random);
  return values;
}

inline cpu::Bfloat16Bits UpperHalf(float value) {
  return static_cast<cpu::Bfloat16Bits>(std::bit_cast<uint32_t>(value) >> 16);
}
inline float Widened(cpu::Bfloat16Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The float32 rounding of each of K sums, relative to the sum of the absolute values of the
// products.
inline double SumTolerance(int64_t num_k) { return 6e-8 * static_cast<double>(num_k + 2); }

}  // namespace taopd::testing
