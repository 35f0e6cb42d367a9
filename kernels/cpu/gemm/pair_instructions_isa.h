// The parts of packed_gemm_isa.h that are written in intrinsics for an instruction set that
// multiplies pairs of bfloat16 (AVX-512 BF16): the product of a pair, and the expansion of a coded
// panel in registers. The file is empty for any other set.
#pragma once

#ifdef __AVX512BF16__

#include <immintrin.h>  // its functions are always inlined: no copy is left for the linker
#include <stdint.h>

namespace taopd::cpu::TAOPD_ISA {
namespace {

typedef float SumVector __attribute__((vector_size(64)));
typedef uint32_t PairVector __attribute__((vector_size(64)));

// Returns sums[i] + x[0] w[i][0] + x[1] w[i][1] for 16 outputs i.
inline __attribute__((always_inline)) SumVector MultiplyPairs(SumVector sums, uint32_t x,
                                                              PairVector w) {
  const __m512i x_bits = _mm512_set1_epi32(static_cast<int>(x));
  const __m512i w_bits = reinterpret_cast<__m512i>(w);
  return reinterpret_cast<SumVector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                      reinterpret_cast<__m512bh>(x_bits),
                                                      reinterpret_cast<__m512bh>(w_bits)));
}

// Expands one step of a coded panel (kernels/cpu/gemm/coded_panel.h) into the four vectors of a
// plain one. `high_bytes` contains the panel's high bytes twice.
inline __attribute__((always_inline)) void ExpandWords(__m256i high_bytes, const uint8_t* step,
                                                       PairVector (&w)[4]) {
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
    w[2 * half] = reinterpret_cast<PairVector>(_mm512_unpacklo_epi8(low, high));
    w[2 * half + 1] = reinterpret_cast<PairVector>(_mm512_unpackhi_epi8(low, high));
  }
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA

#endif
