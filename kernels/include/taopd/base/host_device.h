// TAOPD_HOST_DEVICE marks functions that CPU code and CUDA kernels share. It is empty without nvcc.
#pragma once

#ifdef __CUDACC__
#define TAOPD_HOST_DEVICE __host__ __device__
#else
#define TAOPD_HOST_DEVICE
#endif
