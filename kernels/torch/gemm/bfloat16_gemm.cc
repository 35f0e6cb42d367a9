#include "kernels/torch/gemm/bfloat16_gemm.h"

#include <ATen/native/CPUBlas.h>

#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "kernels/cpu/isa/isa.h"

namespace taopd {
namespace {

#ifdef CPUBLAS_BRGEMM_BF16BF16F32

using at::BFloat16;

void BrgemmMultiply(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                    bool accumulate, const BFloat16* a, const BFloat16* b, float* c) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, accumulate, a, b, c);
}

void BrgemmRelease() { at::native::cpublas::brgemm_release(); }

// Compares brgemm with Bfloat16Multiply's contract on an accumulated product of odd sizes.
bool MultipliesExactly() {
  constexpr int64_t kM = 5, kN = 35, kK = 70;
  std::vector<BFloat16> a(kM * kK), b(kK * kN);
  std::vector<float> c(kM * kN, 1.0f);
  for (size_t i = 0; i < a.size(); ++i) a[i] = BFloat16(static_cast<float>(i % 17) - 8);
  for (size_t i = 0; i < b.size(); ++i) b[i] = BFloat16(static_cast<float>(i % 13) / 4 - 1);
  BrgemmMultiply(kM, kN, kK, kK, kN, kN, true, a.data(), b.data(), c.data());
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      float sum = 1;  // exact in float32: small multiples of 1/4
      for (int64_t k = 0; k < kK; ++k) {
        sum +=
            static_cast<float>(a[m * kK + k]) * static_cast<float>(b[(k / 2 * kN + n) * 2 + k % 2]);
      }
      if (c[m * kN + n] != sum) return false;
    }
  }
  return true;
}

// Compares the bits of products whose sums are rounded, once with all columns and once with only
// the second half of them.
bool ColumnsAreIndependent() {
  constexpr int64_t kM = 7, kN = 64, kK = 130;
  std::vector<BFloat16> a(kM * kK), b(kK * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = BFloat16(1.0f / static_cast<float>(i % 31 + 3));
  for (size_t i = 0; i < b.size(); ++i)
    b[i] = BFloat16(1.0f / static_cast<float>(i % 29 + 1) - 0.6f);
  std::vector<float> whole(kM * kN), half(kM * kN / 2);
  BrgemmMultiply(kM, kN, kK, kK, kN, kN, false, a.data(), b.data(), whole.data());
  BrgemmMultiply(kM, kN / 2, kK, kK, kN, kN / 2, false, a.data(), b.data() + kN, half.data());
  for (int64_t m = 0; m < kM; ++m) {
    if (std::memcmp(&whole[m * kN + kN / 2], &half[m * kN / 2], kN / 2 * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// Returns what is wrong with brgemm on this processor, or an empty string.
std::string ProblemOfBrgemm() {
  std::string problem;
  try {
    if (!MultipliesExactly()) {
      problem = "its product is not the exact one";
    } else if (!ColumnsAreIndependent()) {
      problem = "a column of its product depends on the number of columns";
    }
    BrgemmRelease();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {  // thrown by oneDNN
    problem = error.what();
  }
  return problem;
}

Bfloat16Gemm ChooseBfloat16Gemm() {
  if (!cpu::MultipliesBfloat16()) return {};
  const std::string problem = ProblemOfBrgemm();
  if (problem.empty()) return {BrgemmMultiply, BrgemmRelease};
  TORCH_WARN("bfloat16 heads are computed in float32: this processor multiplies bfloat16, but ",
             "brgemm does not work here: ", problem);
  return {};
}

#else

Bfloat16Gemm ChooseBfloat16Gemm() { return {}; }

#endif

}  // namespace

const Bfloat16Gemm& BestBfloat16Gemm() {
  static const Bfloat16Gemm best = ChooseBfloat16Gemm();
  return best;
}

}  // namespace taopd
