// The loops of panel_gemm.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/isa/compiled_isa.h"
#include "kernels/cpu/math/bfloat16.h"
#include "kernels/cpu/math/transpose_isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The tile of C that is kept in registers.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 4;
constexpr int kVectors = 2;
constexpr int64_t kWidth = kLanes * kVectors;
// Products are summed over blocks of this many k, which are long enough that C is seldom read and
// written.
constexpr int64_t kBlockK = 512;
// Panels of a block whose total size is at most this stay in the second-level cache.
constexpr int64_t kNearPanelBytes = 384 << 10;

// The number of vectors in a cache line.
constexpr int kLineVectors = kLanes < 16 ? 16 / kLanes : 1;

// Computes a tile of C: kRows rows, one panel wide.
template <int kRows, ElementOrder kOrder>
void Tile(const float* a, int64_t a_stride, const float* panel, int64_t num_k, float* c,
          int64_t c_stride, bool accumulate) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sums[m][j] = Floats{};
  }
  // C may not be in the cache: it is prefetched while the products are summed.
  if (accumulate) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; j += kLineVectors) {
        __builtin_prefetch(c + m * c_stride + j * kLanes, 1);
      }
    }
  }
  for (int64_t k = 0; k < num_k; ++k) {
    Floats b[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) Load(&b[j], panel + k * kWidth + j * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const float a_mk = kOrder == ElementOrder::kRows ? a[m * a_stride + k] : a[k * a_stride + m];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[m][j] += a_mk * b[j];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* to = c + m * c_stride + j * kLanes;
      if (accumulate) {
        Floats before;
        Load(&before, to);
        sums[m][j] += before;
      }
      Store(to, &sums[m][j]);
    }
  }
}

using TileFunction = void (*)(const float*, int64_t, const float*, int64_t, float*, int64_t, bool);

// Returns TileOf<order>(rows) for 1 <= rows <= kTileRows.
template <ElementOrder kOrder, int kRows>
TileFunction TileOf(int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return TileOf<kOrder, kRows - 1>(rows);
  }
  return Tile<kRows, kOrder>;
}

// Computes one tile of C. At the right edge, the last panel may be narrower than a tile.
template <ElementOrder kOrder>
TAOPD_ALWAYS_INLINE void MultiplyTile(const float* a, int64_t a_stride, const float* panel,
                                      int64_t rows, int64_t columns, int64_t num_k, float* c,
                                      int64_t c_stride, bool accumulate) {
  const TileFunction tile = TileOf<kOrder, kTileRows>(rows);
  if (columns >= kWidth) {
    tile(a, a_stride, panel, num_k, c, c_stride, accumulate);
    return;
  }
  float whole[kTileRows * kWidth] = {};
  for (int64_t i = 0; accumulate && i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) whole[i * kWidth + j] = c[i * c_stride + j];
  }
  tile(a, a_stride, panel, num_k, whole, kWidth, accumulate);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * c_stride + j] = whole[i * kWidth + j];
  }
}

template <ElementOrder kOrder>
void MultiplyOrdered(const float* a, int64_t a_stride, const float* panels, int64_t num_m,
                     int64_t num_n, int64_t num_k, float* c, int64_t c_stride, bool accumulate) {
  const int64_t row_step = kOrder == ElementOrder::kRows ? a_stride : 1;
  const int64_t k_step = kOrder == ElementOrder::kRows ? 1 : a_stride;
  for (int64_t k = 0; k < num_k; k += kBlockK) {
    const int64_t block_k = num_k - k < kBlockK ? num_k - k : kBlockK;
    const bool add = accumulate || k > 0;
    const auto tile = [&](int64_t m, int64_t n) {
      MultiplyTile<kOrder>(a + m * row_step + k * k_step, a_stride, panels + n * num_k + k * kWidth,
                           num_m - m < kTileRows ? num_m - m : kTileRows, num_n - n, block_k,
                           c + m * c_stride + n, c_stride, add);
    };
    // Data that is not in the cache is read once and in order: A and C if the panels are cached,
    // otherwise the panels.
    if (num_n * block_k * static_cast<int64_t>(sizeof(float)) <= kNearPanelBytes) {
      for (int64_t m = 0; m < num_m; m += kTileRows) {
        for (int64_t n = 0; n < num_n; n += kWidth) tile(m, n);
      }
    } else {
      for (int64_t n = 0; n < num_n; n += kWidth) {
        for (int64_t m = 0; m < num_m; m += kTileRows) tile(m, n);
      }
    }
  }
}

void Multiply(const float* a, ElementOrder a_order, int64_t a_stride, const float* panels,
              int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
              bool accumulate) {
  const auto multiply = a_order == ElementOrder::kRows ? MultiplyOrdered<ElementOrder::kRows>
                                                       : MultiplyOrdered<ElementOrder::kColumns>;
  multiply(a, a_stride, panels, num_m, num_n, num_k, c, c_stride, accumulate);
}

template <typename Element>
void PackElements(const Element* b, ElementOrder order, int64_t stride, int64_t num_k,
                  int64_t num_n, float* panels) {
  const int64_t k_step = order == ElementOrder::kRows ? stride : 1;
  const int64_t n_step = order == ElementOrder::kRows ? 1 : stride;
  // B is read in memory order: it may not be in the cache, but the panels are.
  for (int64_t k = 0; k < num_k; ++k) {
    for (int64_t n = 0; n < num_n; n += kWidth) {
      const int64_t columns = num_n - n < kWidth ? num_n - n : kWidth;
      const Element* from = b + k * k_step + n * n_step;
      float* to = panels + n * num_k + k * kWidth;
      if (columns == kWidth && n_step == 1) {
        for (int64_t j = 0; j < kWidth; ++j) to[j] = Widen(from[j]);
      } else {
        for (int64_t j = 0; j < kWidth; ++j) to[j] = j < columns ? Widen(from[j * n_step]) : 0;
      }
    }
  }
}

// Packs whole panels of a B whose columns are contiguous, in squares.
// REQUIRES: num_k % kLanes == 0, num_n % kWidth == 0.
void PackSquares(const float* b, int64_t stride, int64_t num_k, int64_t num_n, float* panels) {
  for (int64_t n = 0; n < num_n; n += kLanes) {
    float* const to = panels + n / kWidth * kWidth * num_k + n % kWidth;
    for (int64_t k = 0; k < num_k; k += kLanes) {
      WriteTransposed(b + n * stride + k, stride * static_cast<int64_t>(sizeof(float)),
                      to + k * kWidth, kWidth * static_cast<int64_t>(sizeof(float)));
    }
  }
}

void Pack(const float* b, ElementOrder order, int64_t stride, int64_t num_k, int64_t num_n,
          float* panels) {
  int64_t in_squares = 0;
  if (order == ElementOrder::kColumns && num_k % kLanes == 0) {
    in_squares = num_n - num_n % kWidth;
    PackSquares(b, stride, num_k, in_squares, panels);
  }
  PackElements(b + in_squares * stride, order, stride, num_k, num_n - in_squares,
               panels + in_squares * num_k);
}

void PackBf16(const Bfloat16Bits* b, ElementOrder order, int64_t stride, int64_t num_k,
              int64_t num_n, float* panels) {
  PackElements(b, order, stride, num_k, num_n, panels);
}

void AddScaled(const float* from, float factor, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] += factor * from[i];
}

void AddScaledBf16(const Bfloat16Bits* from, float factor, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] += factor * Widen(from[i]);
}

void Scale(const float* from, const float* factors, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] = from[i] * factors[i];
}

void ScaleBf16(const Bfloat16Bits* from, const float* factors, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] = Widen(from[i]) * factors[i];
}

void WidenAll(const Bfloat16Bits* from, int64_t num, float* to) {
  for (int64_t i = 0; i < num; ++i) to[i] = Widen(from[i]);
}

}  // namespace

const PanelGemm kPanelGemm = {kWidth,        Pack,  PackBf16,  Multiply, AddScaled,
                              AddScaledBf16, Scale, ScaleBf16, WidenAll};

}  // namespace taopd::cpu::TAOPD_ISA
