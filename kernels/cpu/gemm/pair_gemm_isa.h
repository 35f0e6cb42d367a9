// The loops of pair_gemm.h, compiled once per instruction set (kernels/cpu/isa/isa.h). The including
// file defines TAOPD_ISA, the namespace; TAOPD_ISA_NAME, the same as a string; TAOPD_LANES, the
// float32 numbers in a register; TAOPD_REGISTERS, the vector registers of the processor; and
// TAOPD_TILE_ROWS, the rows of the largest tile of C that is held in registers. It defines
// TAOPD_MULTIPLIES_PAIRS if it provides MultiplyPairs(sums, x, w), the instruction for a pair.
//
// This file may not include inline functions of other files: they would be compiled for this
// instruction set, and the linker might pick that copy for the whole program.
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/pair_gemm.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

#define TAOPD_INLINE inline __attribute__((always_inline))

constexpr int kLanes = TAOPD_LANES;
constexpr int kTileRows = TAOPD_TILE_ROWS;
constexpr int64_t kWidth = kPairPanelWidth;
// The first rows that meet a panel ask for it this many bytes ahead, which crosses the page at which
// the processor's own prefetch ends.
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kLineBytes = 64;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

// Vectors of a tile of this many rows: as many sums as fit in the registers, beside the vectors of
// weights that several rows use and two registers for x.
constexpr int VectorsOf(int rows) {
  int vectors = kWidth / kLanes;
  while (vectors > 1 && rows * vectors + (rows > 1 ? vectors : 1) + 2 > TAOPD_REGISTERS) {
    vectors /= 2;
  }
  return vectors;
}

#ifdef TAOPD_MULTIPLIES_PAIRS

using Element = Bfloat16Bits;

// sums += the products of one pair of k, of which the last may be `single`.
template <int kRows, int kVectors, bool kSingle>
TAOPD_INLINE void AddPair(const Element* x, int64_t x_stride, const char* weights,
                          Floats (&sums)[kRows][kVectors]) {
  Words w[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    __builtin_memcpy(&w[j], weights + j * sizeof(Words), sizeof(Words));
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    uint32_t pair = 0;  // little-endian: the first element is the lower half
    __builtin_memcpy(&pair, x + m * x_stride, (kSingle ? 1 : 2) * sizeof(Element));
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sums[m][j] = MultiplyPairs(sums[m][j], pair, w[j]);
  }
}

#else

using Element = float;

template <int kRows, int kVectors, bool kSingle>
TAOPD_INLINE void AddPair(const Element* x, int64_t x_stride, const char* weights,
                          Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
  for (int half = 0; half < (kSingle ? 1 : 2); ++half) {
    Floats w[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      Words pairs;
      __builtin_memcpy(&pairs, weights + j * sizeof(Words), sizeof(Words));
      const Words wide = half == 0 ? pairs << 16 : pairs & 0xffff0000u;
      __builtin_memcpy(&w[j], &wide, sizeof(Words));
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const float x_mk = x[m * x_stride + half];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[m][j] += x_mk * w[j];
    }
  }
}

#endif

// A tile of C: kRows rows and kVectors vectors of one panel's outputs.
template <int kRows, int kVectors, bool kPrefetch>
TAOPD_INLINE void Tile(const Element* x, int64_t x_stride, const char* weights, int64_t num_k,
                       float* c, int64_t c_stride) {
  constexpr int64_t kPairBytes = kWidth * 2 * sizeof(Bfloat16Bits);
  Floats sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sums[m][j] = Floats{};
  }
  for (int64_t pair = 0; pair < num_k / 2; ++pair) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 4
      for (int64_t byte = 0; byte < kPairBytes; byte += kLineBytes) {
        __builtin_prefetch(weights + kPrefetchBytes + byte);
      }
    }
    AddPair<kRows, kVectors, false>(x, x_stride, weights, sums);
    x += 2;
    weights += kPairBytes;
  }
  if (num_k % 2 != 0) AddPair<kRows, kVectors, true>(x, x_stride, weights, sums);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      __builtin_memcpy(c + m * c_stride + j * kLanes, &sums[m][j], sizeof(Floats));
    }
  }
}

// kRows rows of one whole panel, in strips of kVectors vectors. The first strip may prefetch the
// whole panel for the others.
template <int kRows, bool kPrefetch>
void Rows(const Element* x, int64_t x_stride, const char* panel, int64_t num_k, float* c,
          int64_t c_stride) {
  constexpr int kVectors = VectorsOf(kRows);
  constexpr int64_t kStripBytes = kVectors * sizeof(Words);
  Tile<kRows, kVectors, kPrefetch>(x, x_stride, panel, num_k, c, c_stride);
  for (int64_t n = kVectors * kLanes; n < kWidth; n += kVectors * kLanes) {
    panel += kStripBytes;
    Tile<kRows, kVectors, false>(x, x_stride, panel, num_k, c + n, c_stride);
  }
}

using RowsFunction = void (*)(const Element*, int64_t, const char*, int64_t, float*, int64_t);

// RowsOf(rows, prefetch) for 1 <= rows <= kTileRows.
template <int kRows>
RowsFunction RowsOf(int64_t rows, bool prefetch) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return RowsOf<kRows - 1>(rows, prefetch);
  }
  return prefetch ? Rows<kRows, true> : Rows<kRows, false>;
}

// Rows of one panel, whole or the last, of which only the first `columns` are written.
void MultiplyPanelRows(const Element* x, int64_t x_stride, const char* panel, int64_t rows,
                       int64_t columns, int64_t num_k, bool prefetch, float* c, int64_t c_stride) {
  const RowsFunction multiply = RowsOf<kTileRows>(rows, prefetch);
  if (columns >= kWidth) {
    multiply(x, x_stride, panel, num_k, c, c_stride);
    return;
  }
  float whole[kTileRows * kWidth];
  multiply(x, x_stride, panel, num_k, whole, kWidth);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) c[m * c_stride + n] = whole[m * kWidth + n];
  }
}

void Multiply(const Element* x, int64_t x_stride, const Bfloat16Bits* panels, int64_t num_m,
              int64_t num_n, int64_t num_k, float* c, int64_t c_stride) {
  const int64_t panel_bytes = (num_k + 1) / 2 * kWidth * 2 * sizeof(Bfloat16Bits);
  const char* panel = reinterpret_cast<const char*>(panels);
  for (int64_t n = 0; n < num_n; n += kWidth, panel += panel_bytes) {
    // Tiles of about equal size: one of a single row takes almost as long as a full one.
    int64_t tiles = (num_m + kTileRows - 1) / kTileRows;
    for (int64_t m = 0; m < num_m; --tiles) {
      const int64_t rows = (num_m - m + tiles - 1) / tiles;
      MultiplyPanelRows(x + m * x_stride, x_stride, panel, rows, num_n - n, num_k, m == 0,
                        c + m * c_stride + n, c_stride);
      m += rows;
    }
  }
}

void AddAndRound(const float* from, const float* bias, int64_t num, Bfloat16Bits* to) {
  for (int64_t i = 0; i < num; ++i) {
    const float sum = bias == nullptr ? from[i] : from[i] + bias[i];
    uint32_t bits;
    __builtin_memcpy(&bits, &sum, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to[i] = static_cast<Bfloat16Bits>(nan ? 0x7fc0u : rounded);
  }
}

#undef TAOPD_INLINE

}  // namespace

extern const PairGemm kPairGemm;
#ifdef TAOPD_MULTIPLIES_PAIRS
const PairGemm kPairGemm = {TAOPD_ISA_NAME, Multiply, nullptr, AddAndRound};
#else
const PairGemm kPairGemm = {TAOPD_ISA_NAME, nullptr, Multiply, AddAndRound};
#endif

}  // namespace taopd::cpu::TAOPD_ISA
