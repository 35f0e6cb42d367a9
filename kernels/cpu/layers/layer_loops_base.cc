#define TAOPD_ISA base
#define TAOPD_ISA_NAME "base"
#include "kernels/cpu/layers/layer_loops_isa.h"
