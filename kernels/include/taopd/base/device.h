// What the launchers of CUDA work take beside their tensors. No CUDA header is needed to call them.
//
// All of them: enqueue on the caller's stream and return without waiting for it; allocate nothing;
// answer with an empty string, or with what is wrong (a shape, a workspace that is too small, an
// error of the CUDA runtime or of cuBLASLt), in which case nothing or only a part was enqueued.
// Calls with different streams and workspaces may run at the same time.
#pragma once

#include <cstdint>

struct CUstream_st;
struct cublasLtContext;

namespace taopd {

enum class DataType : int32_t { kFloat32, kBFloat16 };

constexpr int64_t SizeOf(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

struct DeviceContext {
  CUstream_st* stream = nullptr;        // cudaStream_t; null is the default stream
  cublasLtContext* cublaslt = nullptr;  // cublasLtHandle_t of the stream's device
  void* workspace = nullptr;            // device memory, aligned to 256 bytes, used until the
  int64_t workspace_bytes = 0;          // enqueued work is done
};

}  // namespace taopd
