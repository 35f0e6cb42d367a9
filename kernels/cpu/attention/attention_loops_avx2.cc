#define TAOPD_ISA avx2
#define TAOPD_LANES 8
#define TAOPD_TILE_ROWS 5
#include "kernels/cpu/attention/attention_loops_isa.h"
