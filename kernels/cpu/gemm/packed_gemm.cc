#include "kernels/cpu/gemm/packed_gemm.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm/panel_packing.h"

namespace taopd::cpu {

void PackPairColumns(const Bfloat16Bits* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                     int64_t column, Bfloat16Bits* panel) {
  Bfloat16Bits* to = panel + 2 * column;
  BestPanelPacking().transpose_words(reinterpret_cast<const char*>(w),
                                     w_stride * static_cast<int64_t>(sizeof(Bfloat16Bits)), num_n,
                                     num_k / 2, reinterpret_cast<char*>(to));
  if (num_k % 2 == 0) return;
  Bfloat16Bits* last = to + (num_k - 1) * kPanelOutputs;
  for (int64_t n = 0; n < num_n; ++n) {
    last[2 * n] = w[n * w_stride + num_k - 1];
    last[2 * n + 1] = 0;
  }
}

void PackFloatColumns(const float* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                      int64_t column, float* panel) {
  BestPanelPacking().transpose_words(reinterpret_cast<const char*>(w),
                                     w_stride * static_cast<int64_t>(sizeof(float)), num_n, num_k,
                                     reinterpret_cast<char*>(panel + column));
}

void PackPairRows(const Bfloat16Bits* const* rows, int64_t first, int64_t num_r, int64_t num_n,
                  Bfloat16Bits* panel) {
  for (int64_t r = 0; r < num_r; r += 2, panel += 2 * kPanelOutputs) {
    const Bfloat16Bits* even = rows[r] + first;
    const Bfloat16Bits* odd = r + 1 < num_r ? rows[r + 1] + first : nullptr;
    for (int64_t n = 0; n < num_n; ++n) {
      panel[2 * n] = even[n];
      panel[2 * n + 1] = odd != nullptr ? odd[n] : Bfloat16Bits{0};
    }
    std::fill(panel + 2 * num_n, panel + 2 * kPanelOutputs, Bfloat16Bits{0});
  }
}

void PackFloatRows(const float* const* rows, int64_t first, int64_t num_r, int64_t num_n,
                   float* panel) {
  for (int64_t r = 0; r < num_r; ++r, panel += kPanelOutputs) {
    std::memcpy(panel, rows[r] + first, static_cast<size_t>(num_n) * sizeof(float));
    std::fill(panel + num_n, panel + kPanelOutputs, 0.0f);
  }
}

void ZeroPairColumns(int64_t num_k, int64_t column, Bfloat16Bits* panel) {
  for (int64_t k = 0; k < num_k; k += 2) {
    std::fill(panel + k * kPanelOutputs + 2 * column, panel + (k + 2) * kPanelOutputs,
              Bfloat16Bits{0});
  }
}

void ZeroFloatColumns(int64_t num_k, int64_t column, float* panel) {
  for (int64_t k = 0; k < num_k; ++k) {
    std::fill(panel + k * kPanelOutputs + column, panel + (k + 1) * kPanelOutputs, 0.0f);
  }
}

}  // namespace taopd::cpu
