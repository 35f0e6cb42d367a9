// The vectors and intrinsics of the instruction set for which the including file is compiled. Only
// the *_isa.h files of kernels/cpu include this header, directly or through each other. The build
// compiles each of them once per instruction set, with TAOPD_ISA as the name of the set and of its
// namespace (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>
#ifdef __x86_64__
#include <immintrin.h>  // its functions are always inlined: no copy is left for the linker
#endif

#include "taopd/base/always_inline.h"

// These say how pairs of bfloat16 are multiplied. Without either, they are widened to float32.
#if defined(__AMX_BF16__)
#define TAOPD_PAIRS_BY_AMX
#elif defined(__AVX512BF16__)
#define TAOPD_PAIRS_BY_AVX512
#endif

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The number of float32 lanes of a vector register, and the number of such registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kIsaRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kIsaRegisters = 16;
#else
constexpr int kLanes = 4, kIsaRegisters = 16;
#endif

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

// Vectors in memory need no alignment.
template <typename Vector>
TAOPD_ALWAYS_INLINE void Load(Vector* lanes, const void* from) {
  __builtin_memcpy(lanes, from, sizeof(Vector));
}
template <typename Vector>
TAOPD_ALWAYS_INLINE void Store(void* to, const Vector* lanes) {
  __builtin_memcpy(to, lanes, sizeof(Vector));
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
