// Functions that launch kernels, turn CUDA errors into text, and divide up the workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "taopd/base/round_up.h"

namespace taopd::cuda {

// Returns an empty string for cudaSuccess, otherwise the error's name and text.
inline std::string ProblemOf(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return "";
  return std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

// Launches a one-dimensional grid. Returns an empty string, or the error with the kernel's name.
// Launches nothing if there are 0 blocks, because CUDA would refuse it.
template <typename... Parameters, typename... Arguments>
std::string Launch(const char* name, void (*kernel)(Parameters...), int64_t num_blocks,
                   int num_threads, cudaStream_t stream, Arguments... arguments) {
  if (num_blocks == 0) return "";
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks), 1, 1);
  config.blockDim = dim3(static_cast<unsigned>(num_threads), 1, 1);
  config.stream = stream;
  return ProblemOf(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                   name);
}

// Divides a workspace into parts, each aligned to 256 bytes.
class WorkspaceLayout {
 public:
  // Adds a part of the given size. Returns its offset in the workspace. Both are in bytes.
  int64_t Add(int64_t bytes) {
    const int64_t offset = size_;
    size_ += RoundUp(bytes, 256);
    return offset;
  }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
};

// Returns the part at an offset that Add returned.
template <typename T>
T* Place(void* workspace, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

}  // namespace taopd::cuda
