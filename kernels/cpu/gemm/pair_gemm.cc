#include "kernels/cpu/gemm/pair_gemm.h"

#include <algorithm>
#include <cstring>

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(PairGemm, kPairGemm)
#if defined(__x86_64__)
namespace avx512_bf16 {
extern const PairGemm kPairGemm;
}
#endif

void PackPairColumns(const Bfloat16Bits* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                     int64_t column, Bfloat16Bits* panel) {
  // A cache line of each row at a time: all its pairs are used before the next line is read.
  constexpr int64_t kBlockPairs = 16;
  const int64_t whole_pairs = num_k / 2;
  for (int64_t begin = 0; begin < whole_pairs; begin += kBlockPairs) {
    const int64_t end = std::min(begin + kBlockPairs, whole_pairs);
    for (int64_t n = 0; n < num_n; ++n) {
      const Bfloat16Bits* from = w + n * w_stride;
      Bfloat16Bits* to = panel + 2 * (column + n);
      for (int64_t pair = begin; pair < end; ++pair) {
        std::memcpy(to + pair * 2 * kPairPanelWidth, from + 2 * pair, 2 * sizeof(Bfloat16Bits));
      }
    }
  }
  if (num_k % 2 == 0) return;
  Bfloat16Bits* last = panel + 2 * (whole_pairs * kPairPanelWidth + column);
  for (int64_t n = 0; n < num_n; ++n) {
    last[2 * n] = w[n * w_stride + num_k - 1];
    last[2 * n + 1] = 0;
  }
}

void ZeroPairColumns(int64_t num_k, int64_t column, Bfloat16Bits* panel) {
  const int64_t pairs = (num_k + 1) / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    std::fill(panel + 2 * (pair * kPairPanelWidth + column),
              panel + 2 * (pair + 1) * kPairPanelWidth, Bfloat16Bits{0});
  }
}

std::vector<const PairGemm*> SupportedPairGemms() {
  std::vector<const PairGemm*> gemms;
  for (InstructionSet set : kAllInstructionSets) {
    if (IsSupported(set)) gemms.push_back(&TAOPD_ISA_TABLE(set, kPairGemm));
  }
#if defined(__x86_64__)
  if (MultipliesBfloat16Pairs()) gemms.push_back(&avx512_bf16::kPairGemm);
#endif
  return gemms;
}

const PairGemm& BestPairGemm() {
  static const PairGemm& best = *SupportedPairGemms().back();
  return best;
}

}  // namespace taopd::cpu
