#include "kernels/cpu/isa/isa.h"

namespace taopd::cpu {

const char* NameOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBase:
      return "base";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "";
}

#if defined(__x86_64__)

bool IsSupported(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBase:
      return true;
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case InstructionSet::kAvx512:
      return IsSupported(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    case InstructionSet::kAvx512Bf16:
      return IsSupported(InstructionSet::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

bool MultipliesBfloat16() {
  return __builtin_cpu_supports("avx512f") &&
         (__builtin_cpu_supports("avx512bf16") || __builtin_cpu_supports("amx-bf16"));
}

bool MultipliesFloat16() { return __builtin_cpu_supports("avx512fp16") != 0; }

#else

bool IsSupported(InstructionSet set) { return set == InstructionSet::kBase; }
bool MultipliesBfloat16() { return false; }
bool MultipliesFloat16() { return false; }

#endif

InstructionSet WidestInstructionSet() {
  static const InstructionSet widest = [] {
    InstructionSet found = InstructionSet::kBase;
    for (InstructionSet set : kAllInstructionSets) {
      if (IsSupported(set)) found = set;
    }
    return found;
  }();
  return widest;
}

}  // namespace taopd::cpu
