// The loops of causal_rows.h, compiled once per instruction set (kernels/cpu/isa/isa.h). The loops
// are plain ones, written so that the compiler vectorizes them.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention/causal/causal_rows.h"
#include "kernels/cpu/math/exp_parts.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int kLanes = 16;

TAOPD_ALWAYS_INLINE float SumOfLanes(const float* lanes) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += lanes[i];
  return total;
}

// Returns the largest of s[begin, end), without numbers that are NaN unless the first one is.
TAOPD_ALWAYS_INLINE float Largest(const float* s, int64_t begin, int64_t end) {
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = s[begin];
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] < s[i + lane] ? s[i + lane] : lanes[lane];
    }
  }
  float largest = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = largest < lanes[lane] ? lanes[lane] : largest;
  for (; i < end; ++i) largest = largest < s[i] ? s[i] : largest;
  return largest;
}

float Softmax(float* s, int64_t begin, int64_t end, int64_t n, float scale, float* sum) {
  const float largest = Largest(s, begin, end);
  float lanes[kLanes] = {};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      const float weight = ExpOfNonPositive((s[i + lane] - largest) * scale);
      s[i + lane] = weight;
      lanes[lane] += weight;
    }
  }
  for (int lane = 0; i < end; ++i, ++lane) {
    s[i] = ExpOfNonPositive((s[i] - largest) * scale);
    lanes[lane] += s[i];
  }
  for (i = 0; i < begin; ++i) s[i] = 0;
  for (i = end; i < n; ++i) s[i] = 0;
  *sum = SumOfLanes(lanes);
  return largest * scale + __builtin_logf(*sum);
}

void Gradient(float* s, float* dp, int64_t begin, int64_t end, int64_t n, float scale,
              float log_sum_exp, float delta) {
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const float p = ExpOfNonPositive(s[i] * scale - log_sum_exp);
    s[i] = p;
    dp[i] = p * (dp[i] - delta) * scale;
  }
  for (int64_t i = 0; i < begin; ++i) s[i] = dp[i] = 0;
  for (int64_t i = end; i < n; ++i) s[i] = dp[i] = 0;
}

float Dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  return SumOfLanes(lanes);
}

void Scale(float* x, float factor, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

const CausalRows kCausalRows = {Softmax, Gradient, Dot, Scale};

}  // namespace taopd::cpu::TAOPD_ISA
