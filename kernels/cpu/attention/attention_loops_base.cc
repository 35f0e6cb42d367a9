#define TAOPD_ISA base
#define TAOPD_LANES 4
#define TAOPD_TILE_ROWS 4
#include "kernels/cpu/attention/attention_loops_isa.h"
