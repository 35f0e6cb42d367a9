#define TAOPD_ISA avx512
#include "kernels/cpu/attention/causal/causal_rows_isa.h"
