// TAOPD_HOST_DEVICE marks functions that CPU code and CUDA kernels share. Without nvcc it is empty.
#pragma once

#ifdef __CUDACC__
#define TAOPD_HOST_DEVICE __host__ __device__
#else
#define TAOPD_HOST_DEVICE
#endif
