#define TAOPD_ISA avx2
#define TAOPD_LANES 8
#include "kernels/cpu/math/row_math_isa.h"
