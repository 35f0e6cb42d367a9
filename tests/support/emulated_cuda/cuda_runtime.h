// Emulates the part of the CUDA runtime that kernels/cuda uses on the CPU: the kernels' own source,
// compiled by the host compiler, runs in tests on machines without a GPU. The include directory of
// the target taopd_cuda_emulated puts this header before the toolkit's.
//
// A block's threads are fibers of one host thread. They run one after the other, each until it
// reaches a barrier (of its block or of its warp), in another random order between any two
// barriers. The seed is fixed, or TAOPD_EMULATION_SEED. Shared memory is thread-local memory, which
// holds NaN when a block begins; blocks run one after the other. So a missing barrier and a read of
// what nobody has written show as wrong results. The emulation cannot show other races, memory
// ordering, alignment faults and device-only arithmetic (fused multiply-add, expf's last bit).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <string>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)

struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // those of the running fiber

namespace emulated_cuda {

// Runs `body` once for each thread of each block.
void Run(dim3 grid, dim3 block_size, const std::function<void()>& body);

// Wait until all threads of the block (of the warp) that have not returned have reached the
// barrier.
void BlockBarrier();
void WarpBarrier();

// Returns 64 bytes per lane of the running fiber's warp, for exchanges between two WarpBarrier
// calls.
void* LaneSlot(unsigned lane);
int* BlockCount();

template <typename T>
T Exchange(T value, unsigned source, bool valid) {
  static_assert(sizeof(T) <= 64);
  const unsigned lane = threadIdx.x % 32;
  std::memcpy(LaneSlot(lane), &value, sizeof(T));
  WarpBarrier();
  if (valid) std::memcpy(&value, LaneSlot(source), sizeof(T));
  WarpBarrier();
  return value;
}

}  // namespace emulated_cuda

inline void __syncthreads() { emulated_cuda::BlockBarrier(); }
inline int __syncthreads_count(int value) {
  int* count = emulated_cuda::BlockCount();
  if (threadIdx.x == 0) *count = 0;
  emulated_cuda::BlockBarrier();
  if (value) ++*count;
  emulated_cuda::BlockBarrier();
  const int num = *count;
  emulated_cuda::BlockBarrier();
  return num;
}
inline int __syncthreads_or(int value) { return __syncthreads_count(value) > 0; }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated_cuda::Exchange(value, (threadIdx.x % 32) ^ static_cast<unsigned>(mask), true);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  const unsigned source = threadIdx.x % 32 + delta;
  return emulated_cuda::Exchange(value, source, source < 32);
}
inline int32_t atomicAdd(int32_t* place, int32_t value) {
  const int32_t old = *place;
  *place += value;
  return old;
}
inline int32_t atomicOr(int32_t* place, int32_t value) {
  const int32_t old = *place;
  *place |= value;
  return old;
}
inline int32_t atomicMin(int32_t* place, int32_t value) {
  const int32_t old = *place;
  *place = std::min(old, value);
  return old;
}
// The compiler fuses nothing here (-ffp-contract=off).
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __int_as_float(int32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline int32_t __float_as_int(float value) {
  int32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0 };
inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  emulated_cuda::Run(config->gridDim, config->blockDim, [&] { kernel(arguments...); });
  return cudaSuccess;
}

// Device memory is host memory.
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = ::operator new(bytes, std::align_val_t(256));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* pointer) {
  ::operator delete(pointer, std::align_val_t(256));
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
