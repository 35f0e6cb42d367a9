#define TAOPD_ISA base
#define TAOPD_ISA_NAME "base"
#include "kernels/cpu/row_math_isa.h"
