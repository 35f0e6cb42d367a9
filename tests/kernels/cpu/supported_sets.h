// The instruction sets over which a test of the loops in kernels/cpu iterates.
#pragma once

#include <vector>

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

}  // namespace taopd::testing
