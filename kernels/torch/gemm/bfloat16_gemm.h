// Products of bfloat16 matrices with float32 sums by the processor's own instructions (AVX-512 BF16
// or AMX), through ATen's brgemm.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

// Computes C [M, N] = A [M, K] B [K, N], or C += A B if `accumulate` is set. Matrices are row-major
// and strides count elements. K is even, and B is in VNNI order: element (k, n) is at
// b[(k / 2 * ldb + n) * 2 + k % 2].
using Bfloat16Multiply = void (*)(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                                  int64_t ldc, bool accumulate, const at::BFloat16* a,
                                  const at::BFloat16* b, float* c);

struct Bfloat16Gemm {
  // Null if the processor has no such instructions: callers then widen bfloat16 to float32.
  Bfloat16Multiply multiply = nullptr;
  // Called by each thread at the end of its work; may be null.
  void (*release)() = nullptr;
};

// Returns brgemm if this processor has the instructions and brgemm passes two tests on small
// products: it agrees with float32, and the bits of a column do not depend on how many columns are
// multiplied with it. Otherwise `multiply` is null; if a test failed, the reason is logged once.
// Any thread may call it; the first call runs the tests.
const Bfloat16Gemm& BestBfloat16Gemm();

}  // namespace taopd
