#include "kernels/cpu/math/row_math.h"

namespace taopd::cpu {

namespace base {
extern const RowMath kRowMath;
}
#ifdef TAOPD_X86_ROW_MATH
namespace avx2 {
extern const RowMath kRowMath;
}
namespace avx512 {
extern const RowMath kRowMath;
}
#endif

int NumRowMaths() {
#ifdef TAOPD_X86_ROW_MATH
  if (__builtin_cpu_supports("avx512f")) return 3;
  if (__builtin_cpu_supports("avx2")) return 2;
#endif
  return 1;
}

const RowMath& RowMathAt(int index) {
#ifdef TAOPD_X86_ROW_MATH
  if (index == 2) return avx512::kRowMath;
  if (index == 1) return avx2::kRowMath;
#endif
  return base::kRowMath;
}

const RowMath& BestRowMath() {
  static const RowMath& best = RowMathAt(NumRowMaths() - 1);
  return best;
}

}  // namespace taopd::cpu
