// The instruction sets over which a test of the loops in kernels/cpu iterates.
#pragma once

#include <vector>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/isa/isa.h"

namespace taopd::testing {

// Returns the sets that this processor has, narrowest first; the first is always kBase.
inline std::vector<cpu::InstructionSet> SupportedSets() {
  std::vector<cpu::InstructionSet> sets;
  for (cpu::InstructionSet set : cpu::kAllInstructionSets) {
    if (cpu::IsSupported(set)) sets.push_back(set);
  }
  return sets;
}

// Returns the packed products of these sets.
inline std::vector<const cpu::PackedGemm*> SupportedPackedGemms() {
  std::vector<const cpu::PackedGemm*> gemms;
  for (cpu::InstructionSet set : SupportedSets()) gemms.push_back(&cpu::PackedGemmOf(set));
  return gemms;
}

// Returns the name of the set of one of them.
inline const char* NameOf(const cpu::PackedGemm* gemm) {
  for (cpu::InstructionSet set : SupportedSets()) {
    if (&cpu::PackedGemmOf(set) == gemm) return cpu::NameOf(set);
  }
  return "none";
}

}  // namespace taopd::testing
