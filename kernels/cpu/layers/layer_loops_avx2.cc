#define TAOPD_ISA avx2
#define TAOPD_ISA_NAME "avx2"
#include "kernels/cpu/layers/layer_loops_isa.h"
