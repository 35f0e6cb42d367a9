// Expands coded panels (coded_panel.h) into plain ones, and multiplies pairs of bfloat16 by them.
// AMX has products of its own (amx_products_isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/coded_panel.h"
#include "kernels/cpu/gemm/packed_tile_isa.h"
#include "kernels/cpu/isa/compiled_isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

#ifdef __AVX512BF16__

// Expands one step into the four vectors of a plain one. `high_bytes` contains the panel's high
// bytes twice.
TAOPD_ALWAYS_INLINE void ExpandWords(__m256i high_bytes, const uint8_t* step, Words (&w)[4]) {
  // Uses a mask of ones, because GCC takes the plain intrinsic for a use of an uninitialized value.
  const __m512i table = _mm512_maskz_broadcast_i64x4(0xff, high_bytes);
  const __m512i lower_halves = _mm512_set1_epi8(0xf);
  const __m512i codes = _mm512_loadu_si512(step);
  const __m512i half_codes[2] = {_mm512_and_si512(codes, lower_halves),
                                 _mm512_and_si512(_mm512_srli_epi16(codes, 4), lower_halves)};
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i high = _mm512_shuffle_epi8(table, half_codes[half]);
    const __m512i low = _mm512_loadu_si512(step + 64 + 64 * half);
    w[2 * half] = reinterpret_cast<Words>(_mm512_unpacklo_epi8(low, high));
    w[2 * half + 1] = reinterpret_cast<Words>(_mm512_unpackhi_epi8(low, high));
  }
}

#endif

#ifdef __AVX2__

struct HighByteTable {
  explicit TAOPD_ALWAYS_INLINE HighByteTable(const uint8_t* high_bytes)
      : bytes(_mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(high_bytes)))) {}
  __m256i bytes;
};

TAOPD_ALWAYS_INLINE __m256i LoadBytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Expands 32 codes, each in the lower half of its byte, and 32 low bytes into 32 numbers.
TAOPD_ALWAYS_INLINE void ExpandBytes(const HighByteTable& table, __m256i codes,
                                     const uint8_t* low_bytes, char* to) {
  const __m256i high = _mm256_shuffle_epi8(table.bytes, codes);
  const __m256i low = LoadBytes(low_bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi8(low, high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kStepBytes / 4),
                      _mm256_unpackhi_epi8(low, high));
}

TAOPD_ALWAYS_INLINE void ExpandStep(const HighByteTable& table, const uint8_t* step, char* to) {
#ifdef __AVX512BF16__
  Words w[4];
  ExpandWords(table.bytes, step, w);
  __builtin_memcpy(to, w, sizeof(w));
#else
  const __m256i lower_halves = _mm256_set1_epi8(0xf);
#pragma GCC unroll 2
  for (int64_t part = 0; part < 64; part += 32) {
    const __m256i codes = LoadBytes(step + part);
    ExpandBytes(table, _mm256_and_si256(codes, lower_halves), step + 64 + part, to + part);
    ExpandBytes(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), lower_halves),
                step + 128 + part, to + kStepBytes / 2 + part);
  }
#endif
}

#else

struct HighByteTable {
  explicit TAOPD_ALWAYS_INLINE HighByteTable(const uint8_t* high_bytes) : bytes(high_bytes) {}
  const uint8_t* bytes;
};

TAOPD_ALWAYS_INLINE void ExpandStep(const HighByteTable& table, const uint8_t* step, char* to) {
  for (int64_t half = 0; half < 2; ++half) {
    const uint8_t* const low_bytes = step + 64 + 64 * half;
    for (int64_t p = 0; p < 64; ++p) {
      const int64_t i = 64 * half + 8 * (p / 16) + p % 8 + 32 * (p / 8 % 2);
      const uint8_t high = table.bytes[step[p] >> (4 * half) & 0xf];
      const Bfloat16Bits number = static_cast<Bfloat16Bits>(high << 8 | low_bytes[p]);
      __builtin_memcpy(to + i * static_cast<int64_t>(sizeof(number)), &number, sizeof(number));
    }
  }
}

#endif

// Expands the steps of a panel in their order.
class StepExpander {
 public:
  explicit TAOPD_ALWAYS_INLINE StepExpander(const CodedPanel& panel)
      : table_(panel.high_bytes), steps_(panel.steps), exception_(panel.exceptions) {}

  // Expands the next num_steps steps into `to` [num_steps, kStepBytes].
  TAOPD_ALWAYS_INLINE void Expand(int64_t num_steps, char* to) {
    const uint8_t* from = position();
    for (int64_t step = 0; step < num_steps; ++step, from += kCodedStepBytes) {
      ExpandStep(table_, from, to + step * kStepBytes);
    }
    const int64_t first = next_step_ * kStepNumbers;
    next_step_ += num_steps;
    for (; exception_->position < next_step_ * kStepNumbers; ++exception_) {
      __builtin_memcpy(to + (exception_->position - first) * sizeof(Bfloat16Bits),
                       &exception_->number, sizeof(Bfloat16Bits));
    }
  }

  // Both continue at `step`; PassTo drops the exceptions before it. SkipTo REQUIRES:
  // step <= NextException().
  TAOPD_ALWAYS_INLINE void SkipTo(int64_t step) { next_step_ = step; }
  TAOPD_ALWAYS_INLINE void PassTo(int64_t step) {
    next_step_ = step;
    while (NextException() < step) ++exception_;
  }
  // Returns the step of the next exception, or a number above every step if there is none.
  TAOPD_ALWAYS_INLINE int64_t NextException() const { return exception_->position / kStepNumbers; }
  // The next step, its address, and the high bytes.
  TAOPD_ALWAYS_INLINE int64_t step() const { return next_step_; }
  TAOPD_ALWAYS_INLINE const uint8_t* position() const {
    return steps_ + next_step_ * kCodedStepBytes;
  }
  TAOPD_ALWAYS_INLINE const HighByteTable& table() const { return table_; }

 private:
  HighByteTable table_;
  const uint8_t* steps_;
  const CodedException* exception_;
  int64_t next_step_ = 0;
};

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

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
