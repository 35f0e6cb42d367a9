#define TAOPD_ISA avx512
#define TAOPD_LANES 16
#include "kernels/cpu/math/row_math_isa.h"
