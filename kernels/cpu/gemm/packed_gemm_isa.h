// The loops of packed_gemm.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/amx_products_isa.h"
#include "kernels/cpu/gemm/coded_panel_isa.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/packed_tile_isa.h"
#include "kernels/cpu/isa/compiled_isa.h"
#include "kernels/cpu/math/bfloat16.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

template <typename Products>
void MultiplyPlain(const typename Products::X* x, int64_t x_stride, const void* panels,
                   int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                   bool accumulate) {
  using X = typename Products::X;
  auto tile = TileOf<Products>(x_stride, c_stride);
  tile.weights = static_cast<const char*>(panels);
  for (int64_t n = 0; n < num_n; n += kWidth) {
    ForEachBlock<Products>(&tile, x, num_k, kBlockSteps, accumulate,
                           [&](const X* block_x, int64_t steps) {
                             tile.ahead = tile.weights + steps * kStepBytes;
                             ForEachTile(&tile, block_x, num_m, kStepBytes, c + n,
                                         [&](const TileSums<X>& rows_tile, int64_t rows) {
                                           MultiplyRows<Products>(rows_tile, rows, num_n - n);
                                         });
                             tile.weights += steps * kStepBytes;
                           });
  }
}

// AMX uses MultiplyAmx for pairs instead.
template <typename Products>
void Multiply(const typename Products::X* x, int64_t x_stride, typename Products::Panels panels,
              int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
              bool accumulate) {
  if constexpr (Products::kInputs == 1) {
    MultiplyPlain<Products>(x, x_stride, panels, num_m, num_n, num_k, c, c_stride, accumulate);
  } else if (panels.coded != nullptr) {
    MultiplyCoded<Products>(x, x_stride, panels.coded, num_m, num_n, num_k, c, c_stride,
                            accumulate);
  } else {
    MultiplyPlain<Products>(x, x_stride, panels.plain, num_m, num_n, num_k, c, c_stride,
                            accumulate);
  }
}

// The sums of this many steps are added to C at a time. The part of both panels that they need
// stays in the first- or second-level cache.
constexpr int64_t kAddedSteps = 128;

// C += A^T B for up to kAddedSteps steps: tile.weights are the panels of B, and x is A.
template <typename Products>
void AddSteps(TileSums<typename Products::X>* tile, const typename Products::X* x, int64_t num_m,
              int64_t num_n, float* c) {
  tile->ahead = tile->weights;
  int64_t tiles = NumTiles(num_m);
  for (int64_t m = 0; m < num_m; --tiles) {
    const int64_t rows = CeilDiv(num_m - m, tiles);
    tile->x = x + m * tile->x_stride;
    tile->c = c + m * tile->c_stride;
    MultiplyRows<Products>(*tile, rows, num_n);
    m += rows;
  }
}

template <typename Products>
TileSums<typename Products::X> AddingTile(int64_t x_step, int64_t c_stride) {
  TileSums<typename Products::X> tile{};
  tile.x_stride = Products::kInputs;
  tile.x_step = x_step;
  tile.c_stride = c_stride;
  tile.mode = Sums::kAdd;
  return tile;
}

#ifdef TAOPD_PAIRS_BY_AVX512
void AddTransposedOfPairs(const Bfloat16Bits* a, const Bfloat16Bits* b, int64_t num_r,
                          int64_t num_m, int64_t num_n, float* c, int64_t c_stride) {
  constexpr int64_t kStepElements = kWidth * PairProducts::kInputs;
  auto tile = AddingTile<PairProducts>(kStepElements, c_stride);
  const int64_t all_steps = CeilDiv(num_r, PairProducts::kInputs);
  for (int64_t step = 0; step < all_steps; step += kAddedSteps) {
    tile.steps = all_steps - step < kAddedSteps ? all_steps - step : kAddedSteps;
    tile.weights = reinterpret_cast<const char*>(b + step * kStepElements);
    AddSteps<PairProducts>(&tile, a + step * kStepElements, num_m, num_n, c);
  }
}

int64_t ElementsOfPairPanel(int64_t num_r) { return RoundUp(num_r, 2) * kWidth; }
#endif

// Copies one row of a panel. GCC makes a call of a loop that copies, which takes longer than the
// copy of so few bytes.
TAOPD_ALWAYS_INLINE void CopyWhole(const float* from, float* to) {
  Floats row[kWidth / kLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kWidth / kLanes; ++j) {
    Load(&row[j], from + j * kLanes);
    Store(to + j * kLanes, &row[j]);
  }
}

// Several tiles of A's columns read the same rows of B, so these are copied to be contiguous.
void AddTransposedOfFloats(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                           int64_t num_r, int64_t num_m, int64_t num_n, float* c,
                           int64_t c_stride) {
  alignas(kLineBytes) float panel[kAddedSteps * kWidth];
  const int64_t columns = RoundUp(num_n, kLanes);
  for (int64_t i = 0; i < kAddedSteps; ++i) {
    for (int64_t n = num_n; n < columns; ++n) panel[i * kWidth + n] = 0;
  }
  auto tile = AddingTile<FloatProducts>(a_stride, c_stride);
  tile.weights = reinterpret_cast<const char*>(panel);
  for (int64_t step = 0; step < num_r; step += kAddedSteps) {
    tile.steps = num_r - step < kAddedSteps ? num_r - step : kAddedSteps;
    for (int64_t i = 0; i < tile.steps; ++i) {
      const float* const from = b + (step + i) * b_stride;
      float* const to = panel + i * kWidth;
      if (num_n == kWidth) {
        CopyWhole(from, to);
      } else {
        __builtin_memcpy(to, from, num_n * sizeof(float));
      }
    }
    AddSteps<FloatProducts>(&tile, a + step * a_stride, num_m, num_n, c);
  }
}

void AddAndRound(const float* from, const float* bias, int64_t num, Bfloat16Bits* to) {
  for (int64_t i = 0; i < num; ++i) Put(bias == nullptr ? from[i] : from[i] + bias[i], to + i);
}

constexpr PackedGemm TableOfSet() {
  PackedGemm table{};
  // A multiple of every tile's rows.
  table.row_tile = 12;
  table.row_block = 96;
#if defined(TAOPD_PAIRS_BY_AMX)
  table.row_tile = kAmxRowBlock;
  table.row_block = 12 * kAmxRowBlock;
  table.multiply_pairs = MultiplyAmx;
  table.add_transposed_pairs = AddTransposedAmx;
  table.pack_first_factor = PackAmxFactor;
  table.first_factor_elements = ElementsOfAmxFactor;
#elif defined(TAOPD_PAIRS_BY_AVX512)
  table.multiply_pairs = Multiply<PairProducts>;
  table.add_transposed_pairs = AddTransposedOfPairs;
  table.pack_first_factor = PackPairRows;
  table.first_factor_elements = ElementsOfPairPanel;
#else
  table.multiply_widened_pairs = Multiply<PairProducts>;
#endif
  table.multiply_floats = Multiply<FloatProducts>;
  table.add_transposed_floats = AddTransposedOfFloats;
  table.add_and_round = AddAndRound;
  return table;
}

}  // namespace

// A constant, because initializing code would also run on processors that lack the set.
constinit const PackedGemm kPackedGemm = TableOfSet();

}  // namespace taopd::cpu::TAOPD_ISA
