// Products of pairs of bfloat16 with coded panels. AMX has its own (amx_products_isa.h).
// packed_gemm_isa.h includes this file within its namespace.
#pragma once

#ifdef TAOPD_PAIRS_BY_AVX512

// Computes kRows rows and all outputs of a coded panel, from the expander's position on. The
// weights are expanded in registers, which costs almost nothing compared with the products, except
// in steps that have an exception.
template <typename Products, int kRows, bool kPrefetch>
void CodedTile(const TileSums<typename Products::X>& tile, StepExpander expander) {
  constexpr int kVectors = kWidth / kLanes;
  static_assert(VectorsOf(kRows) == kVectors);
  const typename Products::X* x = tile.x;
  const int64_t x_stride = tile.x_stride, first_step = expander.step();
  Prefetch<kCodedStepBytes> prefetch{tile.ahead, tile.period};
  alignas(kLineBytes) char plain[kStepBytes];
  Floats sums[kRows][kVectors];
  StartSums(tile, sums);
  for (int64_t step = 0;; ++step) {
    const int64_t exception = expander.NextException() - first_step;
    const int64_t end = exception < tile.steps ? exception : tile.steps;
    expander.SkipTo(first_step + end);
    const uint8_t* weights = expander.position() - (end - step) * kCodedStepBytes;
    for (; step < end; ++step) {
      if constexpr (kPrefetch) prefetch.Step();
      Words w[kVectors];
      ExpandWords(expander.table().bytes, weights, w);
      Products::template AddWords<kRows, kVectors, false>(x, x_stride, w, sums);
      x += Products::kInputs;
      weights += kCodedStepBytes;
    }
    if (step == tile.steps) break;
    if constexpr (kPrefetch) prefetch.Step();
    expander.Expand(1, plain);
    Products::template Add<kRows, kVectors, false>(x, x_stride, plain, sums);
    x += Products::kInputs;
  }
  if (tile.single) {
    expander.Expand(1, plain);
    Products::template Add<kRows, kVectors, true>(x, x_stride, plain, sums);
  }
  StoreSums(tile, sums);
}

// REQUIRES: 1 <= rows <= kTileRows. A single tile reads the weights in order and prefetches
// nothing.
template <typename Products, int kRows>
auto CodedTileOf(int64_t rows, bool prefetch) {
  if constexpr (kRows > 1) {
    if (rows != kRows) return CodedTileOf<Products, kRows - 1>(rows, prefetch);
  }
  return prefetch ? CodedTile<Products, kRows, true> : CodedTile<Products, kRows, false>;
}

template <typename Products>
void MultiplyCoded(const typename Products::X* x, int64_t x_stride, const CodedPanel* panels,
                   int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                   bool accumulate) {
  using X = typename Products::X;
  auto tile = TileOf<Products>(x_stride, c_stride);
  for (int64_t n = 0; n < num_n; n += kWidth, ++panels) {
    StepExpander expander(*panels);
    ForEachBlock<Products>(
        &tile, x, num_k, kBlockSteps, accumulate, [&](const X* block_x, int64_t steps) {
          tile.ahead = reinterpret_cast<const char*>(expander.position()) + steps * kCodedStepBytes;
          ForEachTile(
              &tile, block_x, num_m, kCodedStepBytes, c + n,
              [&](const TileSums<X>& rows_tile, int64_t rows) {
                const auto multiply = CodedTileOf<Products, kTileRows>(rows, num_m > kTileRows);
                if (num_n - n >= kWidth) return multiply(rows_tile, expander);
                WithWholePanel(rows_tile, rows, num_n - n,
                               [&](const TileSums<X>& whole) { multiply(whole, expander); });
              });
          expander.PassTo(expander.step() + steps);
        });
  }
}

#else

template <typename Products>
void MultiplyCoded(const typename Products::X* x, int64_t x_stride, const CodedPanel* panels,
                   int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                   bool accumulate) {
  using X = typename Products::X;
  alignas(kLineBytes) char plain[(kExpandedSteps + 1) * kStepBytes];
  auto tile = TileOf<Products>(x_stride, c_stride);
  tile.weights = plain;
  tile.expanded = true;
  const int64_t block_steps = NumTiles(num_m) > 2 ? kExpandedSteps : kFewExpandedSteps;
  for (int64_t n = 0; n < num_n; n += kWidth, ++panels) {
    StepExpander expander(*panels);
    ForEachBlock<Products>(&tile, x, num_k, block_steps, accumulate,
                           [&](const X* block_x, int64_t steps) {
                             expander.Expand(steps, plain);
                             tile.ahead = reinterpret_cast<const char*>(expander.position());
                             ForEachTile(&tile, block_x, num_m, kCodedStepBytes, c + n,
                                         [&](const TileSums<X>& rows_tile, int64_t rows) {
                                           MultiplyRows<Products>(rows_tile, rows, num_n - n);
                                         });
                           });
  }
}

#endif
