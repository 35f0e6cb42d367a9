#define TAOPD_ISA avx512
#define TAOPD_ISA_NAME "avx512"
#define TAOPD_LANES 16
#define TAOPD_REGISTERS 32
#define TAOPD_TILE_ROWS 6
#include "kernels/cpu/gemm/packed_gemm_isa.h"
