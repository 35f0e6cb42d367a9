#define TAOPD_ISA avx512
#include "kernels/cpu/layers/layer_loops_isa.h"
