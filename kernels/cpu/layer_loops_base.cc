#define TAOPD_ISA base
#define TAOPD_ISA_NAME "base"
#include "kernels/cpu/layer_loops_isa.h"
