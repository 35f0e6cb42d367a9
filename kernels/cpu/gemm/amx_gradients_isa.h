// AddTransposedPairs of packed_gemm.h with AMX, and the packing of its first factor. The file is
// empty for any other instruction set. packed_gemm_isa.h includes it within its namespace.
#pragma once

#include "kernels/cpu/gemm/amx_tiles_isa.h"

#ifdef TAOPD_PAIRS_BY_AMX

// The first factor of AddTransposedAmx: tile (r / 32, m / 16) has the 32 numbers of its rows of A
// for each of its 16 columns, tiles[((r / 32 * 4 + m / 16) * 16 + m % 16) * 32 + r % 32].
int64_t ElementsOfAmxFactor(int64_t num_r) { return RoundUp(num_r, kAmxInputs) * kWidth; }

// Transposes 16 rows of 16 words; the rows of `from` are kStepBytes apart.
TAOPD_ALWAYS_INLINE void TransposeAmxTile(const char* from, char* to) {
  Words in[16], half[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) Load(&in[i], from + i * kStepBytes);
  // Four times, row i of the result takes the first or second half of rows i / 2 and i / 2 + 8,
  // word by word in turn.
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      half[2 * i] = __builtin_shuffle(
          in[i], in[i + 8], Words{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
      half[2 * i + 1] = __builtin_shuffle(
          in[i], in[i + 8], Words{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) in[i] = half[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) Store(to + i * kAmxRowBytes, &in[i]);
}

void PackAmxFactor(const Bfloat16Bits* const* rows, int64_t first, int64_t num_r, int64_t num_m,
                   Bfloat16Bits* tiles) {
  alignas(kLineBytes) Bfloat16Bits pairs[kAmxInputs * kWidth];
  for (int64_t r = 0; r < num_r; r += kAmxInputs) {
    const int64_t count = num_r - r < kAmxInputs ? num_r - r : kAmxInputs;
    if (count < kAmxInputs || num_m < kWidth) __builtin_memset(pairs, 0, sizeof(pairs));
    for (int64_t i = 0; i < count; i += 2) {
      const Bfloat16Bits* const even = rows[r + i] + first;
      const Bfloat16Bits* const odd = i + 1 < count ? rows[r + i + 1] + first : nullptr;
      Bfloat16Bits* const pair = pairs + i * kWidth;
      if (odd != nullptr && num_m == kWidth) {
        for (int64_t m = 0; m < kWidth; ++m) {
          pair[2 * m] = even[m];
          pair[2 * m + 1] = odd[m];
        }
        continue;
      }
      for (int64_t m = 0; m < num_m; ++m) {
        pair[2 * m] = even[m];
        if (odd != nullptr) pair[2 * m + 1] = odd[m];
      }
    }
    char* const to = reinterpret_cast<char*>(tiles + r * kWidth);
    for (int64_t tile = 0; tile < kWidth / kAmxOutputs; ++tile) {
      TransposeAmxTile(reinterpret_cast<const char*>(pairs) + tile * kAmxRowBytes,
                       to + tile * kAmxTileBytes);
    }
  }
}

// The number of instructions whose products are summed before they are added to C.
constexpr int64_t kAmxAddedGroups = 16;

void AddTransposedAmx(const Bfloat16Bits* a, const Bfloat16Bits* b, int64_t num_r, int64_t num_m,
                      int64_t num_n, float* c, int64_t c_stride) {
  constexpr int64_t kGroupBytes = kWidth / kAmxOutputs * kAmxTileBytes;
  const auto* const tiles = reinterpret_cast<const char*>(a);
  const auto* const panel = reinterpret_cast<const char*>(b);
  const int64_t groups = num_r / kAmxInputs, rest = num_r % kAmxInputs;
  alignas(kLineBytes) char last[kAmxWeightBytes];
  if (rest > 0) CopyLastWeights(panel + groups * kAmxWeightBytes, rest, last);
  alignas(kLineBytes) float sums[kAmxRowBlock * kWidth];
  AmxRegisters registers;
  registers.Use(kAmxRows, kAmxRows);
  AmxPrefetch none;
  for (int64_t group = 0; group == 0 || group < groups; group += kAmxAddedGroups) {
    const int64_t count = groups - group < kAmxAddedGroups ? groups - group : kAmxAddedGroups;
    const bool with_rest = rest > 0 && group + count == groups;
    for (int64_t m = 0; m < num_m; m += kAmxRowBlock) {
      const char* const a_tiles = tiles + group * kGroupBytes + m / kAmxRows * kAmxTileBytes;
      // A block's second tile of rows follows its first.
      const AmxBlock block = {
          {a_tiles, kAmxRowBytes, kGroupBytes, panel + group * kAmxWeightBytes, count},
          {a_tiles + count * kGroupBytes, kAmxRowBytes, 0, last, with_rest},
          /*from_c=*/false,
          sums,
          kWidth};
      MultiplyTall(block, num_n <= kWidth / 2 ? kWidth / 2 : kWidth, &none);
      const int64_t end = num_m - m < kAmxRowBlock ? num_m - m : kAmxRowBlock;
      for (int64_t i = 0; i < end; ++i) {
        float* const to = c + (m + i) * c_stride;
        for (int64_t n = 0; n < num_n; ++n) to[n] += sums[i * kWidth + n];
      }
    }
  }
}

#endif
