// The arithmetic of AdamW, element by element: one source for the CPU, the CUDA kernels and the
// tests, like taopd/layers/layer_math.h.
#pragma once

#include <cstdint>

#include "taopd/base/always_inline.h"
#include "taopd/base/host_device.h"

namespace taopd {

// The values of an AdamW update that all elements share. AdamW (Loshchilov and Hutter,
// arXiv:1711.05101) is computed as torch.optim.AdamW does: weight decay is separate from the
// gradient, and both moments are corrected for their start at zero.
template <typename Scalar>
struct AdamWFactors {
  Scalar gradient_scale = 1;  // for clipping
  Scalar one_minus_beta1 = 0;
  Scalar beta2 = 0;
  Scalar one_minus_beta2 = 0;
  Scalar step_size = 0;   // lr / (1 - beta1^t)
  Scalar root_scale = 0;  // 1 / sqrt(1 - beta2^t)
  Scalar eps = 0;
};

// Updates both moments of one element.
template <typename Scalar, typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void AdamWMoments(const AdamWFactors<Scalar>& factors,
                                                        const Real& gradient, Real* exp_avg,
                                                        Real* exp_avg_sq) {
  const Real scaled = gradient * factors.gradient_scale;
  *exp_avg = *exp_avg + (scaled - *exp_avg) * factors.one_minus_beta1;
  *exp_avg_sq = *exp_avg_sq * factors.beta2 + scaled * scaled * factors.one_minus_beta2;
}

// Updates one element of the parameter. keep = 1 - lr weight_decay; root = sqrt(exp_avg_sq).
template <typename Scalar, typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void AdamWParameter(const AdamWFactors<Scalar>& factors,
                                                          Scalar keep, const Real& exp_avg,
                                                          const Real& root, Real* parameter) {
  *parameter =
      *parameter * keep - exp_avg * factors.step_size / (root * factors.root_scale + factors.eps);
}

// Moments may be stored in bfloat16 with stochastic rounding: a number between two bfloat16 numbers
// is rounded up with a probability proportional to its distance from the lower one, so that its
// mean is the number itself. If it were rounded to nearest, a second moment would never fall: with
// beta2 = 0.999 a step changes it by a thousandth, less than half a unit in the last place of
// bfloat16.
//
// A bfloat16 parameter that has no float32 copy is rounded the same way: with a learning rate of
// 1e-6, an update is less than half a unit in the last place of nearly every weight, and would be
// lost if rounded to nearest.
//
// The random bits are a function of the step, the parameter and the element's place in it. They do
// not depend on threads, on devices, or on how parameters are divided among optimizers.
//
// Returns the key of a parameter's bits in one step: two rounds of splitmix64 (Steele, Lea and
// Flood, 2014).
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE uint64_t AdamWRandomKey(int64_t step, int64_t parameter) {
  uint64_t key = static_cast<uint64_t>(step);
  for (int round = 0; round < 2; ++round) {
    key += 0x9e3779b97f4a7c15u + static_cast<uint64_t>(parameter);
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    key ^= key >> 31;
  }
  return key;
}

// Returns the key of the bits that round the parameter itself. No moments have this key, because
// their steps are positive.
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE uint64_t AdamWWeightKey(int64_t step, int64_t parameter) {
  return AdamWRandomKey(-step, parameter);
}

// Returns 32 random bits of an element. The multiplications and shifts are those of the hash
// functions "lowbias32" and "triple32" that Wellons found by search
// (https://nullprogram.com/blog/2018/07/31/). All operations are 32 bits wide, so they vectorize.
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE uint32_t AdamWRandomBits(uint64_t key, uint32_t element) {
  uint32_t x = element + static_cast<uint32_t>(key);
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += static_cast<uint32_t>(key >> 32);
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

// Returns the bits of a float32 number rounded to bfloat16 with 16 random bits. Infinity and NaN
// stay as they are.
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE uint32_t RoundToBfloat16(uint32_t float_bits,
                                                               uint32_t random_16) {
  const uint32_t magnitude = float_bits & 0x7fffffffu;
  const uint32_t rounded = (float_bits + (magnitude < 0x7f800000u ? random_16 : 0u)) >> 16;
  return magnitude > 0x7f800000u ? 0x7fc0u : rounded;
}

}  // namespace taopd
