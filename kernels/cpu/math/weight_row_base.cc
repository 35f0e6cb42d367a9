#define TAOPD_ISA base
#define TAOPD_LANES 4
#include "kernels/cpu/math/weight_row_isa.h"
