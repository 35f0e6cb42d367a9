// The bfloat16 products of kernels/torch/gemm/head_gemm_cpu.h by plain loops, in place of a
// processor's instructions.
#pragma once

#include <gtest/gtest.h>

#include "kernels/torch/gemm/head_gemm_cpu.h"

namespace taopd::testing {

// Does what Bfloat16Multiply promises, element by element.
inline void PlainMultiply(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                          bool accumulate, const at::BFloat16* a, const at::BFloat16* b, float* c) {
  ASSERT_EQ(k % 2, 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = accumulate ? c[i * ldc + j] : 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<float>(a[i * lda + l]) *
               static_cast<float>(b[(l / 2 * ldb + j) * 2 + l % 2]);
      }
      c[i * ldc + j] = sum;
    }
  }
}

inline constexpr Bfloat16Gemm kPlainPairs{PlainMultiply, nullptr};

}  // namespace taopd::testing
