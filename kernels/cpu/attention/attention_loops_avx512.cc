#define TAOPD_ISA avx512
#define TAOPD_LANES 16
#define TAOPD_TILE_ROWS 12
#include "kernels/cpu/attention/attention_loops_isa.h"
