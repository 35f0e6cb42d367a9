// Facts about the instruction set for which the including file is compiled. Only the *_isa.h files
// of kernels/cpu include this header, directly or through each other. The build compiles each of
// them once per instruction set, with TAOPD_ISA as the name of the set and of its namespace
// (kernels/cpu/isa/isa.h).
#pragma once

#define TAOPD_QUOTED_TOKEN(token) #token
#define TAOPD_QUOTED(token) TAOPD_QUOTED_TOKEN(token)

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr const char* kIsaName = TAOPD_QUOTED(TAOPD_ISA);

// The number of float32 lanes of a vector register, and the number of such registers.
#if defined(__AVX512F__)
constexpr int kIsaLanes = 16, kIsaRegisters = 32;
#elif defined(__AVX2__)
constexpr int kIsaLanes = 8, kIsaRegisters = 16;
#else
constexpr int kIsaLanes = 4, kIsaRegisters = 16;
#endif

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA

#undef TAOPD_QUOTED
#undef TAOPD_QUOTED_TOKEN
