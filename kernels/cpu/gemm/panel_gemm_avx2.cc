#define TAOPD_ISA avx2
#define TAOPD_LANES 8
#define TAOPD_TILE_ROWS 6
#define TAOPD_TILE_VECTORS 2
#include "kernels/cpu/gemm/panel_gemm_isa.h"
