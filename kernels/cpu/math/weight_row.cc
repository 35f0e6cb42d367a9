#include "kernels/cpu/math/weight_row.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(WeightRow, kWeightRow)

const WeightRow& WeightRowOf(InstructionSet set) { return TAOPD_ISA_TABLE(set, kWeightRow); }

}  // namespace taopd::cpu
