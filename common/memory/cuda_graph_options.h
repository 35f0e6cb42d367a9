// The use of CUDA graphs for decode steps. common/memory/cuda_graphs.h explains and checks the
// options.
#pragma once

#include <cstdint>

#include "common/config/settings.h"

namespace taopd {

enum class CudaGraphUse {
  kAuto,    // decode steps are captured where that is possible
  kAlways,  // an error where it is not
  kNever,
};
inline EnumNames<CudaGraphUse> NamesOf(CudaGraphUse) {
  return {{CudaGraphUse::kAuto, "auto"},
          {CudaGraphUse::kAlways, "true"},
          {CudaGraphUse::kNever, "false"}};
}

// The names of the other options are vLLM's.
struct CudaGraphOptions {
  CudaGraphUse use = CudaGraphUse::kNever;
  // The largest batch that is captured. If 0, kDefaultCaptureSize, or the number of sequences that
  // run at once if that is less.
  int64_t max_capture_size = 0;
  // A step with a longer sequence runs eagerly: the memory of a graph grows with the number of
  // positions for which it has room.
  int64_t max_seq_len = 8192;
};

inline constexpr int64_t kDefaultCaptureSize = 512;
inline constexpr int64_t kMaxCaptureSize = 4096;  // the limit of max_capture_size

}  // namespace taopd
