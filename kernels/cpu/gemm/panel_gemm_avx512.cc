#define TAOPD_ISA avx512
#define TAOPD_LANES 16
#define TAOPD_TILE_ROWS 12
#define TAOPD_TILE_VECTORS 2
#include "kernels/cpu/gemm/panel_gemm_isa.h"
