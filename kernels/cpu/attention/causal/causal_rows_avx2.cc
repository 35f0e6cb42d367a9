#define TAOPD_ISA avx2
#include "kernels/cpu/attention/causal/causal_rows_isa.h"
