#include <immintrin.h>  // its functions are always inlined: no copy is left for the linker
#include <stdint.h>

#define TAOPD_ISA avx512_bf16
#define TAOPD_ISA_NAME "avx512_bf16"
#define TAOPD_LANES 16
#define TAOPD_REGISTERS 32
#define TAOPD_TILE_ROWS 6
#define TAOPD_MULTIPLIES_PAIRS

namespace taopd::cpu::avx512_bf16 {
namespace {

typedef float SumVector __attribute__((vector_size(64)));
typedef uint32_t PairVector __attribute__((vector_size(64)));

// sums[i] + x[0] w[i][0] + x[1] w[i][1] for 16 outputs i.
inline __attribute__((always_inline)) SumVector MultiplyPairs(SumVector sums, uint32_t x,
                                                              PairVector w) {
  const __m512i x_bits = _mm512_set1_epi32(static_cast<int>(x));
  const __m512i w_bits = reinterpret_cast<__m512i>(w);
  return reinterpret_cast<SumVector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                      reinterpret_cast<__m512bh>(x_bits),
                                                      reinterpret_cast<__m512bh>(w_bits)));
}

}  // namespace
}  // namespace taopd::cpu::avx512_bf16

#include "kernels/cpu/gemm/packed_gemm_isa.h"
