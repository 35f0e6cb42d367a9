#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {

namespace base {
extern const LayerLoops kFloat32Loops, kBfloat16Loops;
}
#ifdef TAOPD_X86_ROW_MATH
namespace avx2 {
extern const LayerLoops kFloat32Loops, kBfloat16Loops;
}
namespace avx512 {
extern const LayerLoops kFloat32Loops, kBfloat16Loops;
}
#endif

int NumLayerLoops() {
#ifdef TAOPD_X86_ROW_MATH
  if (__builtin_cpu_supports("avx512f")) return 3;
  if (__builtin_cpu_supports("avx2")) return 2;
#endif
  return 1;
}

const LayerLoops& LayerLoopsAt(int index, DataType type) {
  const bool wide = type == DataType::kFloat32;
#ifdef TAOPD_X86_ROW_MATH
  if (index == 2) return wide ? avx512::kFloat32Loops : avx512::kBfloat16Loops;
  if (index == 1) return wide ? avx2::kFloat32Loops : avx2::kBfloat16Loops;
#endif
  return wide ? base::kFloat32Loops : base::kBfloat16Loops;
}

const LayerLoops& BestLayerLoops(DataType type) {
  static const int best = NumLayerLoops() - 1;
  return LayerLoopsAt(best, type);
}

}  // namespace taopd::cpu
