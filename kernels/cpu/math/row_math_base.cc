#define TAOPD_ISA base
#define TAOPD_LANES 4
#include "kernels/cpu/math/row_math_isa.h"
