#define TAOPD_ISA base
#define TAOPD_LANES 4
#define TAOPD_TILE_ROWS 4
#define TAOPD_TILE_VECTORS 2
#include "kernels/cpu/gemm/panel_gemm_isa.h"
