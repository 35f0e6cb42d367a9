#define TAOPD_ISA avx2
#define TAOPD_ISA_NAME "avx2"
#define TAOPD_LANES 8
#define TAOPD_REGISTERS 16
#define TAOPD_TILE_ROWS 6
#include "kernels/cpu/gemm/packed_gemm_isa.h"
