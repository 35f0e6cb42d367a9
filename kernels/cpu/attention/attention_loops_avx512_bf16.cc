#define TAOPD_ISA avx512_bf16
#define TAOPD_LANES 16
#define TAOPD_TILE_ROWS 12
#define TAOPD_BFLOAT16_PAIRS
#include "kernels/cpu/attention/attention_loops_isa.h"
