#include "kernels/cpu/attention/causal/causal_rows.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(CausalRows, kCausalRows)

const CausalRows& CausalRowsOf(InstructionSet set) { return TAOPD_ISA_TABLE(set, kCausalRows); }

}  // namespace taopd::cpu
