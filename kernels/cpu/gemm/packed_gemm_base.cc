#define TAOPD_ISA base
#define TAOPD_ISA_NAME "base"
#define TAOPD_LANES 4
#define TAOPD_REGISTERS 16
#define TAOPD_TILE_ROWS 4
#include "kernels/cpu/gemm/packed_gemm_isa.h"
