#include "kernels/cpu/gemm/panel_gemm.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(PanelGemm, kPanelGemm)

const PanelGemm& PanelGemmOf(InstructionSet set) { return TAOPD_ISA_TABLE(set, kPanelGemm); }

const PanelGemm& BestPanelGemm() {
  static const PanelGemm& best = PanelGemmOf(WidestInstructionSet());
  return best;
}

}  // namespace taopd::cpu
