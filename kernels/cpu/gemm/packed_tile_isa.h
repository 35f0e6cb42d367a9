// Tiles of a product with packed weights: the part of packed_gemm_isa.h that adds up the steps of
// one panel in registers.
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/isa/compiled_isa.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The rows of the largest tile of C that is kept in registers.
constexpr int kTileRows = kLanes == 4 ? 4 : 6;
constexpr int64_t kWidth = kPanelOutputs;
// The weights of a panel for one step of the inner loop: a pair of bfloat16 or one float32 number
// for each output.
constexpr int64_t kStepBytes = kWidth * 4;
// All rows of a call are multiplied by this many steps of a panel before the next steps, so that
// the weights stay in the second-level cache, along with those that are fetched for the next block.
// The sums continue where they stopped: the order over k is that of a single loop.
constexpr int64_t kBlockSteps = (128 << 10) / kStepBytes;
// A block of a coded panel is expanded into memory that stays in a cache: the first-level cache,
// unless several tiles of rows use the block.
constexpr int64_t kExpandedSteps = (64 << 10) / kStepBytes;
constexpr int64_t kFewExpandedSteps = (8 << 10) / kStepBytes;
constexpr int64_t kLineBytes = 64;

inline int64_t NumTiles(int64_t num_m) { return CeilDiv(num_m, kTileRows); }

// Returns the vectors of a tile of this many rows: as many sums as fit in the registers, besides
// the vectors of weights that several rows share and two registers for x.
constexpr int VectorsOf(int rows) {
  int vectors = kWidth / kLanes;
  while (vectors > 1 && rows * vectors + (rows > 1 ? vectors : 1) + 2 > kIsaRegisters) {
    vectors /= 2;
  }
  return vectors;
}

// The three kinds of products. Add adds the products of one step to a tile's sums. `kSingle` is for
// a last pair that lacks its second number. The weights are local arrays of vectors because GCC
// keeps those in registers.

struct FloatProducts {
  using X = float;
  using Panels = const float*;
  static constexpr int kInputs = 1;  // k per step

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_ALWAYS_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                                      Floats (&sums)[kRows][kVectors]) {
    Floats w[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) Load(&w[j], weights + j * sizeof(Floats));
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const float x_mk = x[m * x_stride];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sums[m][j] += x_mk * w[j];
    }
  }
};

#ifdef __AVX512BF16__

// Returns sums[i] + x[0] w[i][0] + x[1] w[i][1] for 16 outputs i.
TAOPD_ALWAYS_INLINE Floats MultiplyPairs(Floats sums, uint32_t x, Words w) {
  const __m512i x_bits = _mm512_set1_epi32(static_cast<int>(x));
  const __m512i w_bits = reinterpret_cast<__m512i>(w);
  return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                   reinterpret_cast<__m512bh>(x_bits),
                                                   reinterpret_cast<__m512bh>(w_bits)));
}

struct PairProducts {
  using X = Bfloat16Bits;
  using Panels = PairPanels;
  static constexpr int kInputs = 2;

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_ALWAYS_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                                      Floats (&sums)[kRows][kVectors]) {
    Words w[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) Load(&w[j], weights + j * sizeof(Words));
    AddWords<kRows, kVectors, kSingle>(x, x_stride, w, sums);
  }

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_ALWAYS_INLINE void AddWords(const X* x, int64_t x_stride, const Words (&w)[kVectors],
                                           Floats (&sums)[kRows][kVectors]) {
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
  using Panels = PairPanels;
  static constexpr int kInputs = 2;

  template <int kRows, int kVectors, bool kSingle>
  static TAOPD_ALWAYS_INLINE void Add(const X* x, int64_t x_stride, const char* weights,
                                      Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int half = 0; half < (kSingle ? 1 : 2); ++half) {
      Floats w[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        Words pairs;
        Load(&pairs, weights + j * sizeof(Words));
        const Words wide = half == 0 ? pairs << 16 : pairs & 0xffff0000u;
        __builtin_memcpy(&w[j], &wide, sizeof(wide));  // as float32
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

// The use of the numbers that a tile finds in C.
enum class Sums {
  kFirst,     // they are overwritten
  kContinue,  // the sums continue from them
  kAdd,       // the sums start at zero and are added to them at the end
};

// The part of the sums of a tile of C that covers some k.
template <typename X>
struct TileSums {
  const X* x;  // at the first k
  int64_t x_stride;
  int64_t x_step;       // elements of x from one step to the next
  const char* weights;  // at the first k
  const char* ahead;    // weights to prefetch, one step at a time
  int64_t period;       // steps between two such prefetches; 0: none
  bool expanded;        // the weights are in a cache, whatever the order
  int64_t steps;
  bool single;  // one number of a pair follows the last step
  Sums mode;
  float* c;
  int64_t c_stride;
};

// Returns the numbers from which a tile's sums start.
template <typename X, int kRows, int kVectors>
TAOPD_ALWAYS_INLINE void StartSums(const TileSums<X>& tile, Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sums[m][j] = Floats{};
      if (tile.mode == Sums::kContinue) {
        Load(&sums[m][j], tile.c + m * tile.c_stride + j * kLanes);
      }
    }
  }
}

template <typename X, int kRows, int kVectors>
TAOPD_ALWAYS_INLINE void StoreSums(const TileSums<X>& tile, Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      float* const c = tile.c + m * tile.c_stride + j * kLanes;
      if (tile.mode == Sums::kAdd) {
        Floats before;
        Load(&before, c);
        sums[m][j] += before;
      }
      Store(c, &sums[m][j]);
    }
  }
}

// Prefetches weights ahead of the current loop.
template <int64_t kBytes>
struct Prefetch {
  const char* ahead;
  int64_t period;
  int64_t until = 1;

  TAOPD_ALWAYS_INLINE void Step() {
    if (--until != 0) return;
    until = period;
#pragma GCC unroll 4
    for (int64_t byte = 0; byte < kBytes; byte += kLineBytes) {
      __builtin_prefetch(ahead + byte, /*rw=*/0, /*locality=*/2);
    }
    ahead += kBytes;
  }
};

// Computes kRows rows and kVectors vectors of one panel's outputs.
template <typename Products, int kRows, int kVectors, bool kPrefetch>
TAOPD_ALWAYS_INLINE void Tile(const TileSums<typename Products::X>& tile) {
  const typename Products::X* x = tile.x;
  const int64_t x_stride = tile.x_stride, x_step = tile.x_step;
  const char* weights = tile.weights;
  Prefetch<kVectors * sizeof(Words)> prefetch{tile.ahead, tile.period};
  Floats sums[kRows][kVectors];
  StartSums(tile, sums);
  for (int64_t step = 0; step < tile.steps; ++step) {
    if constexpr (kPrefetch) prefetch.Step();
    Products::template Add<kRows, kVectors, false>(x, x_stride, weights, sums);
    x += x_step;
    weights += kStepBytes;
  }
  if (tile.single) Products::template Add<kRows, kVectors, true>(x, x_stride, weights, sums);
  StoreSums(tile, sums);
}

// Computes kRows rows of the first `columns` outputs of one panel, which are whole vectors, in
// strips of as many vectors as fit in the registers. The rest at the end is computed in narrower
// strips: an element's sum is the same in each.
//
// One strip reads a panel in the order of its addresses, which the processor prefetches by itself.
// Several strips skip lines, which it does not prefetch. With several tiles of rows only the first
// would wait for memory, and nothing would be fetched while the others compute. Therefore each
// strip of each tile prefetches its part of the next block, line by line, if kPrefetch is set.
template <typename Products, int kRows, int kVectors, bool kPrefetch>
TAOPD_ALWAYS_INLINE void Strips(TileSums<typename Products::X>* strip, int64_t* columns) {
  constexpr int64_t kStripBytes = kVectors * sizeof(Words);
  for (; *columns >= kVectors * kLanes; *columns -= kVectors * kLanes) {
    Tile<Products, kRows, kVectors, kPrefetch>(*strip);
    strip->weights += kStripBytes;
    if constexpr (kPrefetch) {
      strip->ahead += CeilDiv(strip->steps, strip->period) * kStripBytes;
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

// REQUIRES: 1 <= rows <= kTileRows. One strip of one tile is read in order and prefetches nothing.
template <typename Products, int kRows>
RowsFunction<typename Products::X> RowsOf(int64_t rows,
                                          const TileSums<typename Products::X>& tile) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return RowsOf<Products, kRows - 1>(rows, tile);
  }
  const bool in_order = tile.period == 1 && VectorsOf(kRows) * kLanes == kWidth;
  return tile.period > 0 && (tile.expanded || !in_order) ? Rows<Products, kRows, true>
                                                         : Rows<Products, kRows, false>;
}

// Calls multiply(tile) with a tile in which outputs of the last panel that do not exist may be
// written.
template <typename X, typename MultiplyTile>
TAOPD_ALWAYS_INLINE void WithWholePanel(const TileSums<X>& tile, int64_t rows, int64_t columns,
                                        const MultiplyTile& multiply) {
  float whole[kTileRows * kWidth] = {};
  for (int64_t m = 0; tile.mode != Sums::kFirst && m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) whole[m * kWidth + n] = tile.c[m * tile.c_stride + n];
  }
  TileSums<X> buffered = tile;
  buffered.c = whole;
  buffered.c_stride = kWidth;
  multiply(buffered);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) tile.c[m * tile.c_stride + n] = whole[m * kWidth + n];
  }
}

// Computes rows of one panel whose first `columns` outputs exist in C.
template <typename Products>
void MultiplyRows(const TileSums<typename Products::X>& tile, int64_t rows, int64_t columns) {
  const auto multiply = RowsOf<Products, kTileRows>(rows, tile);
  if (columns >= kWidth || columns % kLanes == 0) {
    multiply(tile, columns < kWidth ? columns : kWidth);
    return;
  }
  WithWholePanel(tile, rows, columns, [&](const TileSums<typename Products::X>& whole) {
    multiply(whole, RoundUp(columns, kLanes));
  });
}

// Multiplies the rows of x by one block of a panel, in tiles of about equal size, because a tile of
// a single row takes almost as long as a full one. Each tile prefetches its part of the next block,
// whose steps have ahead_bytes each: one of its steps every `period` steps.
template <typename X, typename MultiplyTile>
TAOPD_ALWAYS_INLINE void ForEachTile(TileSums<X>* tile, const X* x, int64_t num_m,
                                     int64_t ahead_bytes, float* c, const MultiplyTile& multiply) {
  int64_t tiles = NumTiles(num_m);
  tile->period = tiles;
  const int64_t share_bytes = CeilDiv(tile->steps, tiles) * ahead_bytes;
  for (int64_t m = 0; m < num_m; --tiles) {
    const int64_t rows = CeilDiv(num_m - m, tiles);
    tile->x = x + m * tile->x_stride;
    tile->c = c + m * tile->c_stride;
    multiply(*tile, rows);
    tile->ahead += share_bytes;
    m += rows;
  }
}

// Goes through the steps of one panel, at most block_steps at a time: sets `tile` to the block and
// calls multiply_block(x, steps), where `steps` counts a single last number as a step.
template <typename Products, typename MultiplyBlock>
TAOPD_ALWAYS_INLINE void ForEachBlock(TileSums<typename Products::X>* tile,
                                      const typename Products::X* x, int64_t num_k,
                                      int64_t block_steps, bool accumulate,
                                      const MultiplyBlock& multiply_block) {
  const int64_t all_steps = num_k / Products::kInputs;
  const int64_t odd = num_k % Products::kInputs;
  int64_t step = 0;
  do {
    tile->steps = all_steps - step < block_steps ? all_steps - step : block_steps;
    tile->single = odd != 0 && step + tile->steps == all_steps;
    tile->mode = step == 0 && !accumulate ? Sums::kFirst : Sums::kContinue;
    multiply_block(x + step * Products::kInputs, tile->steps + (tile->single ? 1 : 0));
    step += tile->steps;
  } while (step < all_steps);
}

template <typename Products>
TileSums<typename Products::X> TileOf(int64_t x_stride, int64_t c_stride) {
  TileSums<typename Products::X> tile{};
  tile.x_stride = x_stride;
  tile.x_step = Products::kInputs;
  tile.c_stride = c_stride;
  return tile;
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
