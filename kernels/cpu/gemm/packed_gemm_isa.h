// The loops of packed_gemm.h, compiled once per instruction set (kernels/cpu/isa/isa.h). The
// including file defines TAOPD_ISA, the namespace; TAOPD_ISA_NAME, the same as a string;
// TAOPD_LANES, the float32 numbers in a register; TAOPD_REGISTERS, the vector registers of the
// processor; and TAOPD_TILE_ROWS, the rows of the largest tile of C that is held in registers. It
// defines TAOPD_MULTIPLIES_PAIRS if it provides MultiplyPairs(sums, x, w), the instruction for a
// pair.
//
// This file may not include inline functions of other files: they would be compiled for this
// instruction set, and the linker might pick that copy for the whole program.
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/packed_gemm.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

#define TAOPD_INLINE inline __attribute__((always_inline))

constexpr int kLanes = TAOPD_LANES;
constexpr int kTileRows = TAOPD_TILE_ROWS;
constexpr int64_t kWidth = kPanelOutputs;
// The weights of a panel for one step of the inner loop: a pair of bfloat16 or one float32 number
// for each output.
constexpr int64_t kStepBytes = kWidth * 4;
// All rows of a call meet this many steps of a panel before the next ones, so that the weights stay
// in the second-level cache, beside those that are fetched for the next block. The sums go on from
// where they were: the order over k is that of one loop.
constexpr int64_t kBlockSteps = (128 << 10) / kStepBytes;
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

// The three kinds of products. Add adds those of one step to a tile's sums; `kSingle`: of a last
// pair, which lacks its second number. The weights are local arrays of vectors because GCC keeps
// those in registers.

struct FloatProducts {
  using X = float;
  using W = float;
  static constexpr int kInputs = 1;  // k per step

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                               Floats (&sums)[kRows][kVectors]) {
    Floats w[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      __builtin_memcpy(&w[j], weights + j * sizeof(Floats), sizeof(Floats));
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const float x_mk = x[m * x_stride];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sums[m][j] += x_mk * w[j];
    }
  }
};

#ifdef TAOPD_MULTIPLIES_PAIRS

struct PairProducts {
  using X = Bfloat16Bits;
  using W = Bfloat16Bits;
  static constexpr int kInputs = 2;

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                               Floats (&sums)[kRows][kVectors]) {
    Words w[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      __builtin_memcpy(&w[j], weights + j * sizeof(Words), sizeof(Words));
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      uint32_t pair = 0;  // little-endian: the first number is the lower half
      __builtin_memcpy(&pair, x + m * x_stride, (kSingle ? 1 : 2) * sizeof(X));
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sums[m][j] = MultiplyPairs(sums[m][j], pair, w[j]);
    }
  }
};

#else

struct PairProducts {
  using X = float;
  using W = Bfloat16Bits;
  static constexpr int kInputs = 2;

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                               Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int half = 0; half < (kSingle ? 1 : 2); ++half) {
      Floats w[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        Words pairs;
        __builtin_memcpy(&pairs, weights + j * sizeof(Words), sizeof(Words));
        const Words wide = half == 0 ? pairs << 16 : pairs & 0xffff0000u;
        __builtin_memcpy(&w[j], &wide, sizeof(Words));
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const float x_mk = x[m * x_stride + half];
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sums[m][j] += x_mk * w[j];
      }
    }
  }
};

#endif

// What becomes of the numbers that a tile finds in C.
enum class Sums {
  kFirst,     // they are overwritten
  kContinue,  // the sums go on from them
  kAdd,       // the sums start at zero and are added to them at the end
};

// Part of the sums of a tile of C: those over some k.
template <typename X>
struct TileSums {
  const X* x;  // at the first k
  int64_t x_stride;
  int64_t x_step;       // elements of x from one step to the next
  const char* weights;  // at the first k
  const char* ahead;    // weights to fetch meanwhile: those of one step,
  int64_t period;       // every so many steps; 0 = never
  int64_t steps;
  bool single;  // one number of a pair follows the last step
  Sums mode;
  float* c;
  int64_t c_stride;
};

// kRows rows and kVectors vectors of one panel's outputs.
template <typename Products, int kRows, int kVectors, bool kPrefetch>
TAOPD_INLINE void Tile(const TileSums<typename Products::X>& tile) {
  constexpr int64_t kBytes = kVectors * sizeof(Words);  // of weights per step
  const typename Products::X* x = tile.x;
  const int64_t x_stride = tile.x_stride, x_step = tile.x_step;
  const char* weights = tile.weights;
  const char* ahead = tile.ahead;
  int64_t until_fetch = 1;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sums[m][j] = Floats{};
      if (tile.mode == Sums::kContinue) {
        __builtin_memcpy(&sums[m][j], tile.c + m * tile.c_stride + j * kLanes, sizeof(Floats));
      }
    }
  }
  for (int64_t step = 0; step < tile.steps; ++step) {
    if constexpr (kPrefetch) {
      if (--until_fetch == 0) {
        until_fetch = tile.period;
#pragma GCC unroll 4
        for (int64_t byte = 0; byte < kBytes; byte += kLineBytes) {
          __builtin_prefetch(ahead + byte, /*rw=*/0, /*locality=*/2);
        }
        ahead += kBytes;
      }
    }
    Products::template Add<kRows, kVectors, false>(x, x_stride, weights, sums);
    x += x_step;
    weights += kStepBytes;
  }
  if (tile.single) Products::template Add<kRows, kVectors, true>(x, x_stride, weights, sums);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      float* const c = tile.c + m * tile.c_stride + j * kLanes;
      if (tile.mode == Sums::kAdd) {
        Floats before;
        __builtin_memcpy(&before, c, sizeof(Floats));
        sums[m][j] += before;
      }
      __builtin_memcpy(c, &sums[m][j], sizeof(Floats));
    }
  }
}

// kRows rows of the first `columns` outputs of one panel, which are whole vectors, in strips of as
// many vectors as fit in the registers. What is left at the end is computed in narrower strips: an
// element's sum is the same in each.
//
// One strip reads a panel in the order of its addresses, which the processor prefetches by itself.
// Several strips read every other line, which it does not, and of several tiles of rows the first
// would wait for the memory and the others compute while nothing is fetched. So each strip of each
// tile asks for its share of the next block, line by line, if kPrefetch is set.
template <typename Products, int kRows, int kVectors, bool kPrefetch>
TAOPD_INLINE void Strips(TileSums<typename Products::X>* strip, int64_t* columns) {
  constexpr int64_t kStripBytes = kVectors * sizeof(Words);
  for (; *columns >= kVectors * kLanes; *columns -= kVectors * kLanes) {
    Tile<Products, kRows, kVectors, kPrefetch>(*strip);
    strip->weights += kStripBytes;
    if constexpr (kPrefetch) {
      strip->ahead += (strip->steps + strip->period - 1) / strip->period * kStripBytes;
    }
    strip->c += kVectors * kLanes;
  }
  if constexpr (kVectors > 1) Strips<Products, kRows, kVectors / 2, kPrefetch>(strip, columns);
}

template <typename Products, int kRows, bool kPrefetch>
void Rows(const TileSums<typename Products::X>& tile, int64_t columns) {
  TileSums<typename Products::X> strip = tile;
  Strips<Products, kRows, VectorsOf(kRows), kPrefetch>(&strip, &columns);
}

template <typename X>
using RowsFunction = void (*)(const TileSums<X>&, int64_t columns);

// For 1 <= rows <= kTileRows. One strip of one tile is read in order, and fetches nothing ahead.
template <typename Products, int kRows>
RowsFunction<typename Products::X> RowsOf(int64_t rows, int64_t period) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return RowsOf<Products, kRows - 1>(rows, period);
  }
  const bool in_order = period == 1 && VectorsOf(kRows) * kLanes == kWidth;
  return period > 0 && !in_order ? Rows<Products, kRows, true> : Rows<Products, kRows, false>;
}

// Rows of one panel, whole or the last one, of which only the first `columns` outputs exist in C.
template <typename Products>
void MultiplyRows(const TileSums<typename Products::X>& tile, int64_t rows, int64_t columns) {
  const auto multiply = RowsOf<Products, kTileRows>(rows, tile.period);
  if (columns >= kWidth || columns % kLanes == 0) {
    multiply(tile, columns < kWidth ? columns : kWidth);
    return;
  }
  float whole[kTileRows * kWidth] = {};
  for (int64_t m = 0; tile.mode != Sums::kFirst && m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) whole[m * kWidth + n] = tile.c[m * tile.c_stride + n];
  }
  TileSums<typename Products::X> buffered = tile;
  buffered.c = whole;
  buffered.c_stride = kWidth;
  multiply(buffered, (columns + kLanes - 1) / kLanes * kLanes);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) tile.c[m * tile.c_stride + n] = whole[m * kWidth + n];
  }
}

template <typename Products>
void Multiply(const typename Products::X* x, int64_t x_stride, const typename Products::W* panels,
              int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride) {
  const int64_t all_steps = num_k / Products::kInputs;
  const int64_t odd = num_k % Products::kInputs;
  TileSums<typename Products::X> tile;
  tile.x_stride = x_stride;
  tile.x_step = Products::kInputs;
  tile.c_stride = c_stride;
  tile.weights = reinterpret_cast<const char*>(panels);
  for (int64_t n = 0; n < num_n; n += kWidth) {
    int64_t step = 0;
    do {
      tile.steps = all_steps - step < kBlockSteps ? all_steps - step : kBlockSteps;
      tile.single = odd != 0 && step + tile.steps == all_steps;
      tile.mode = step == 0 ? Sums::kFirst : Sums::kContinue;
      const int64_t block_bytes = (tile.steps + (tile.single ? 1 : 0)) * kStepBytes;
      // Tiles of about equal size: one of a single row takes almost as long as a full one.
      int64_t tiles = (num_m + kTileRows - 1) / kTileRows;
      tile.ahead = tile.weights + block_bytes;
      tile.period = tiles;
      const int64_t share_bytes = (tile.steps + tiles - 1) / tiles * kStepBytes;
      for (int64_t m = 0; m < num_m; --tiles) {
        const int64_t rows = (num_m - m + tiles - 1) / tiles;
        tile.x = x + m * x_stride + step * Products::kInputs;
        tile.c = c + m * c_stride + n;
        MultiplyRows<Products>(tile, rows, num_n - n);
        tile.ahead += share_bytes;
        m += rows;
      }
      tile.weights += block_bytes;
      step += tile.steps;
    } while (step < all_steps);
  }
}

// The sums of this many steps are added to C at a time: both panels' share stays in the first- or
// second-level cache.
constexpr int64_t kAddedSteps = 128;

template <typename Products>
void AddTransposed(const typename Products::X* a, const typename Products::W* b, int64_t num_r,
                   int64_t num_m, int64_t num_n, float* c, int64_t c_stride) {
  const int64_t all_steps = (num_r + Products::kInputs - 1) / Products::kInputs;
  TileSums<typename Products::X> tile;
  tile.x_stride = Products::kInputs;
  tile.x_step = kWidth * Products::kInputs;
  tile.c_stride = c_stride;
  tile.single = false;
  tile.mode = Sums::kAdd;
  for (int64_t step = 0; step < all_steps; step += kAddedSteps) {
    tile.steps = all_steps - step < kAddedSteps ? all_steps - step : kAddedSteps;
    tile.weights = reinterpret_cast<const char*>(b) + step * kStepBytes;
    tile.ahead = tile.weights;
    tile.period = 0;
    int64_t tiles = (num_m + kTileRows - 1) / kTileRows;
    for (int64_t m = 0; m < num_m; --tiles) {
      const int64_t rows = (num_m - m + tiles - 1) / tiles;
      tile.x = a + (step * kWidth + m) * Products::kInputs;
      tile.c = c + m * c_stride;
      MultiplyRows<Products>(tile, rows, num_n);
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

extern const PackedGemm kPackedGemm;
const PackedGemm kPackedGemm = {TAOPD_ISA_NAME,
#ifdef TAOPD_MULTIPLIES_PAIRS
                                Multiply<PairProducts>,
                                nullptr,
#else
                                nullptr,
                                Multiply<PairProducts>,
#endif
                                Multiply<FloatProducts>,
#ifdef TAOPD_MULTIPLIES_PAIRS
                                AddTransposed<PairProducts>,
#else
                                nullptr,
#endif
                                AddTransposed<FloatProducts>,
                                AddAndRound};

}  // namespace taopd::cpu::TAOPD_ISA
