#define TAOPD_ISA avx2
#define TAOPD_LANES 8
#include "kernels/cpu/math/weight_row_isa.h"
