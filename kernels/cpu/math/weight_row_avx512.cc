#define TAOPD_ISA avx512
#define TAOPD_LANES 16
#include "kernels/cpu/math/weight_row_isa.h"
