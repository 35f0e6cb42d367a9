#include "kernels/cpu/gemm/panel_gemm.h"

namespace taopd::cpu {

namespace panel_base {
extern const PanelGemm kPanelGemm;
}
#ifdef TAOPD_X86_ROW_MATH
namespace panel_avx2 {
extern const PanelGemm kPanelGemm;
}
namespace panel_avx512 {
extern const PanelGemm kPanelGemm;
}
#endif

int NumPanelGemms() {
#ifdef TAOPD_X86_ROW_MATH
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  return __builtin_cpu_supports("avx512f") ? 3 : 2;
#endif
  return 1;
}

const PanelGemm& PanelGemmAt(int index) {
#ifdef TAOPD_X86_ROW_MATH
  if (index == 2) return panel_avx512::kPanelGemm;
  if (index == 1) return panel_avx2::kPanelGemm;
#endif
  return panel_base::kPanelGemm;
}

const PanelGemm& BestPanelGemm() {
  static const PanelGemm& best = PanelGemmAt(NumPanelGemms() - 1);
  return best;
}

}  // namespace taopd::cpu
