// The instruction sets of this processor. No other code detects them.
//
// The loops that cost time (kernels/cpu/math, gemm, layers and attention) are compiled once per
// instruction set from one source each: row_math.h, for example, from row_math_isa.h. The build
// (taopd_isa_sources) defines TAOPD_ISA as the set's name, which is also the namespace in which
// each compilation defines a constant table of functions. row_math.h picks among the tables with
// TAOPD_ISA_TABLE.
//
// A *_isa.h file calls no function of std, and the headers that it includes mark every inline
// function TAOPD_ALWAYS_INLINE. Any other would be compiled for one instruction set, and the linker
// might pick that copy for the whole program.
//
// Any thread may call these functions.
#pragma once

#include <string>

namespace taopd::cpu {

// Narrowest first: a processor that supports one set supports all before it.
enum class InstructionSet {
  kBase,        // what the compiler may assume of every processor of this architecture
  kAvx2,        // AVX2 with fused multiply-add
  kAvx512,      // AVX-512 with its instructions for bytes and words and for short vectors (BW, VL)
  kAvx512Bf16,  // AVX-512 with products of pairs of bfloat16 (VDPBF16PS on 512-bit registers)
  kAmxBf16,     // the same with products of tiles of bfloat16 (TDPBF16PS of AMX)
};
inline constexpr InstructionSet kAllInstructionSets[] = {
    InstructionSet::kBase, InstructionSet::kAvx2, InstructionSet::kAvx512,
    InstructionSet::kAvx512Bf16, InstructionSet::kAmxBf16};

// Returns "base", "avx2", "avx512", "avx512_bf16" or "amx_bf16".
const char* NameOf(InstructionSet set);

// Returns whether this processor has the set. The operating system must also permit AMX's tiles:
// the first call for kAmxBf16 requests this (arch_prctl(2), ARCH_REQ_XCOMP_PERM) for all threads of
// the process.
bool IsSupported(InstructionSet set);

// The environment variable with the name of the widest set to use, such as avx512_bf16 to do
// without AMX. Without it there is no limit.
inline constexpr const char* kMaxIsaVariable = "TAOPD_MAX_CPU_ISA";

// Returns an empty string, or an error message if the value of kMaxIsaVariable is not the name of a
// set. Programs call it before they compute anything, and refuse to start after an error.
std::string ProblemOfMaxIsa();

// Returns the widest set that this processor has and that kMaxIsaVariable allows. The first call
// detects it. Kernels run on this set.
InstructionSet WidestInstructionSet();

// Returns whether the processor multiplies float16 itself (AVX-512 FP16). Always false on
// processors other than x86-64, whose support is unknown.
bool MultipliesFloat16();

#if defined(__x86_64__)
inline constexpr bool kIsX86 = true;
#else
inline constexpr bool kIsX86 = false;
#endif

}  // namespace taopd::cpu

// TAOPD_DECLARE_ISA_TABLES declares the tables `name` of this Type in namespace taopd::cpu.
// TAOPD_ISA_TABLE(set, name) is the table of an InstructionSet that the processor supports; a set
// without a table uses that of the set before it. The macros with PAIR in their names are for loops
// that also have a table for kAvx512Bf16, and those with TILE for loops that have one for kAmxBf16,
// too.
#if defined(__x86_64__)
#define TAOPD_DECLARE_ISA_TABLES(Type, name) \
  namespace base {                           \
  extern const Type name;                    \
  }                                          \
  namespace avx2 {                           \
  extern const Type name;                    \
  }                                          \
  namespace avx512 {                         \
  extern const Type name;                    \
  }
#define TAOPD_ISA_TABLE(set, name)                               \
  ((set) >= ::taopd::cpu::InstructionSet::kAvx512 ? avx512::name \
   : (set) == ::taopd::cpu::InstructionSet::kAvx2 ? avx2::name   \
                                                  : base::name)
#define TAOPD_DECLARE_PAIR_ISA_TABLES(Type, name) \
  TAOPD_DECLARE_ISA_TABLES(Type, name)            \
  namespace avx512_bf16 {                         \
  extern const Type name;                         \
  }
#define TAOPD_PAIR_ISA_TABLE(set, name)                                   \
  ((set) >= ::taopd::cpu::InstructionSet::kAvx512Bf16 ? avx512_bf16::name \
                                                      : TAOPD_ISA_TABLE(set, name))
#define TAOPD_DECLARE_TILE_ISA_TABLES(Type, name) \
  TAOPD_DECLARE_PAIR_ISA_TABLES(Type, name)       \
  namespace amx_bf16 {                            \
  extern const Type name;                         \
  }
#define TAOPD_TILE_ISA_TABLE(set, name)                             \
  ((set) == ::taopd::cpu::InstructionSet::kAmxBf16 ? amx_bf16::name \
                                                   : TAOPD_PAIR_ISA_TABLE(set, name))
#else
#define TAOPD_DECLARE_ISA_TABLES(Type, name) \
  namespace base {                           \
  extern const Type name;                    \
  }
#define TAOPD_ISA_TABLE(set, name) (static_cast<void>(set), base::name)
#define TAOPD_DECLARE_PAIR_ISA_TABLES TAOPD_DECLARE_ISA_TABLES
#define TAOPD_PAIR_ISA_TABLE TAOPD_ISA_TABLE
#define TAOPD_DECLARE_TILE_ISA_TABLES TAOPD_DECLARE_ISA_TABLES
#define TAOPD_TILE_ISA_TABLE TAOPD_ISA_TABLE
#endif
