// Arithmetic on log-probabilities. Every function accepts -inf, a probability of zero, and keeps
// NaN, so that a broken model shows in the loss instead of being hidden on the way.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "taopd/base/host_device.h"

namespace taopd {

template <typename Real>
TAOPD_HOST_DEVICE constexpr Real NegativeInfinity() {
  return -std::numeric_limits<Real>::infinity();
}

// log(1 - exp(x)) for x <= 0; -inf at 0. The split at -log 2 keeps the relative error small on both
// sides (Maechler, "Accurately computing log(1 - exp(-|a|))", 2012).
template <typename Real>
TAOPD_HOST_DEVICE inline Real Log1mExp(Real x) {
  constexpr Real kMinusLog2 = Real(-0.69314718055994530942);
  return x > kMinusLog2 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

// log(exp(x) + exp(y)).
template <typename Real>
TAOPD_HOST_DEVICE inline Real LogAddExp(Real x, Real y) {
  const Real high = x < y ? y : x;
  const Real low = x < y ? x : y;
  if (high == NegativeInfinity<Real>()) return low;  // -inf, or the NaN of the two
  return high + std::log1p(std::exp(low - high));
}

// The largest of num >= 0 numbers, a NaN if one of them is; -inf if there are none.
template <typename Real>
TAOPD_HOST_DEVICE inline Real Largest(const Real* x, int32_t num) {
  Real high = NegativeInfinity<Real>();
  for (int32_t j = 0; j < num; ++j) {
    if (std::isnan(x[j])) return x[j];
    if (x[j] > high) high = x[j];
  }
  return high;
}

// log(sum_j exp(x_j)) of num >= 0 numbers; -inf if there are none.
template <typename Real>
TAOPD_HOST_DEVICE inline Real LogSumExp(const Real* x, int32_t num) {
  const Real high = Largest(x, num);
  if (high == NegativeInfinity<Real>()) return high;
  Real sum = 0;
  for (int32_t j = 0; j < num; ++j) sum += std::exp(x[j] - high);
  return high + std::log(sum);
}

// Writes exp(x_j) to y[num], which may be x. Callers with a faster loop pass theirs instead.
struct LoopOfExp {
  template <typename Real>
  TAOPD_HOST_DEVICE void operator()(const Real* x, int32_t num, Real* y) const {
    for (int32_t j = 0; j < num; ++j) y[j] = std::exp(x[j]);
  }
};

// Writes exp(x_j) / sum_i exp(x_i) to p[num], and returns the log of the sum. All p are 0 if the
// sum is.
template <typename Real, typename ExpOf = LoopOfExp>
TAOPD_HOST_DEVICE inline Real Softmax(const Real* x, int32_t num, Real* p, ExpOf exp_of = {}) {
  const Real high = Largest(x, num);
  const bool is_empty = high == NegativeInfinity<Real>();
  for (int32_t j = 0; j < num; ++j) p[j] = is_empty ? x[j] : x[j] - high;
  exp_of(p, num, p);
  Real sum = 0;
  for (int32_t j = 0; j < num; ++j) sum += p[j];
  const Real inverse = is_empty ? 0 : 1 / sum;
  for (int32_t j = 0; j < num; ++j) p[j] *= inverse;
  return high + std::log(sum);
}

// Returns the log of the tail of a distribution from the log of its support's mass, for teachers
// that cannot send a tail (vLLM, SGLang). The log of the mass is held at -epsilon or below, so that
// the tail stays positive when rounding lifts the mass to 1 (paper, "Numerically Stable Computation
// of TA-OPD"); *clamped says whether it was. Code that has the logits should use the log-sum-exp
// over the complement instead.
template <typename Real>
TAOPD_HOST_DEVICE inline Real LogTailFromLogMass(Real log_mass, Real epsilon, bool* clamped) {
  *clamped = log_mass > -epsilon;
  return Log1mExp(*clamped ? -epsilon : log_mass);
}

}  // namespace taopd
