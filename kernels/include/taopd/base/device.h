// The contract of functions that enqueue CUDA work, and the context that they take besides their
// tensors. Callers need no CUDA header. All of these functions keep this contract:
//
//   - They enqueue work on the caller's stream and return without waiting for it.
//   - They allocate no memory.
//   - They return an empty string, or the first problem: a shape, a workspace that is too small, or
//     an error of the CUDA runtime or of cuBLASLt. After an error, none or only part of the work
//     has been enqueued, and the outputs are unspecified.
//   - Any thread may call them. Calls with different streams, workspaces and outputs may run at the
//     same time.
#pragma once

#include <cstdint>

struct CUstream_st;
struct cublasLtContext;

namespace taopd {

// The place where the work runs. The caller owns everything that is pointed to.
struct DeviceContext {
  // A cudaStream_t; null is the default stream.
  CUstream_st* stream = nullptr;
  // A cublasLtHandle_t of the stream's device; only functions that multiply matrices need it.
  cublasLtContext* cublaslt = nullptr;
  // Device memory, aligned to 256 bytes. It is used until the enqueued work is done; its contents
  // need not be initialized and are overwritten.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

}  // namespace taopd
