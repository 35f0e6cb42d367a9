#include "kernels/cpu/math/row_math.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(RowMath, kRowMath)

const RowMath& RowMathOf(InstructionSet set) { return TAOPD_ISA_TABLE(set, kRowMath); }

const RowMath& BestRowMath() {
  static const RowMath& best = RowMathOf(WidestInstructionSet());
  return best;
}

}  // namespace taopd::cpu
