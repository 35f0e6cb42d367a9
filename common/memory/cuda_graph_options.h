// The use of CUDA graphs for decode steps. common/memory/cuda_graphs.h explains and checks the
// options.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/config/kernel_mode.h"
#include "common/config/settings.h"

namespace taopd {

enum class CudaGraphUse {
  kAuto,    // decode steps are captured where that is possible
  kAlways,  // as kAuto, but it is an error where that is impossible
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
  // The largest batch that is captured, which is at most the number of tokens of a step. If 0,
  // kDefaultCaptureSize, or the number of sequences that run at once if that is less.
  int64_t max_capture_size = 0;
  // A step with a longer sequence runs eagerly: the memory of a graph grows with the number of
  // positions that it can hold.
  int64_t max_seq_len = 8192;
};

// Returns INVALID_ARGUMENT if no engine with these options can capture decode steps, on any device.
inline absl::Status CheckCanCapture(KernelMode kernels, int64_t tensor_parallel_size) {
  if (kernels == KernelMode::kComposed) {
    return InvalidArgument("kernels = composed has no kernel that a graph can replay");
  }
  if (tensor_parallel_size > 1) {
    return InvalidArgument("CUDA graphs do not work with tensor_parallel_size ",
                           tensor_parallel_size, ": must be 1");
  }
  return absl::OkStatus();
}

inline constexpr int64_t kDefaultCaptureSize = 512;
inline constexpr int64_t kMaxCaptureSize = 4096;  // the limit of max_capture_size

}  // namespace taopd
