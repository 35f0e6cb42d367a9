#define TAOPD_ISA avx2
#include "kernels/cpu/layers/layer_loops_isa.h"
