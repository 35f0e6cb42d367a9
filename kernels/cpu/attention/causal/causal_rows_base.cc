#define TAOPD_ISA base
#include "kernels/cpu/attention/causal/causal_rows_isa.h"
