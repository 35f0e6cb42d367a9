// How an engine uses CUDA graphs for decode steps; common/memory/cuda_graphs.h explains and checks it.
#pragma once

#include <cstdint>

namespace taopd {

// The names are vLLM's.
struct CudaGraphOptions {
  bool enabled = false;
  // The largest batch that is captured. 0 = kDefaultCaptureSize, or as many sequences as run at once
  // if that is less.
  int64_t max_capture_size = 0;
  // A step of longer sequences runs eagerly: the memory of a graph grows with the positions that it
  // has room for.
  int64_t max_seq_len = 8192;
};

inline constexpr int64_t kDefaultCaptureSize = 512;
inline constexpr int64_t kMaxCaptureSize = 4096;  // the limit of max_capture_size

}  // namespace taopd
