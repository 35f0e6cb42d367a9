#include "kernels/cpu/gemm/panel_packing.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(PanelPacking, kPanelPacking)

const PanelPacking& PanelPackingOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kPanelPacking);
}

const PanelPacking& BestPanelPacking() {
  static const PanelPacking& best = PanelPackingOf(WidestInstructionSet());
  return best;
}

}  // namespace taopd::cpu
