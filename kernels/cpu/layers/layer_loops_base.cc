#define TAOPD_ISA base
#include "kernels/cpu/layers/layer_loops_isa.h"
