// Chooses the kernels of a process at its start (kernels/torch/kernel_choice.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/config/kernel_mode.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The use of a model by the process, which decides which kernels are checked on which shapes.
struct KernelUse {
  KernelMode kernels = KernelMode::kAuto;
  std::string device = "auto";  // as DecoderOptions::device
  std::string dtype = "auto";   // as DecoderOptions::dtype
  int64_t max_len = 0;          // of a sequence; 0: what the model allows
  int32_t top_k = 0;            // of scores or supports
  bool trains = false;
};

// Sets the kernels that the process uses. With auto on a CUDA device, each custom kernel is first
// compared with its composition (kernels/torch/self_check/self_check.h), which takes up to a few
// seconds and logs one line per kernel. Call it before a model is loaded and before memory is
// planned. read_config returns the model's configuration; it is called only if kernels are checked,
// and its errors are passed on. Returns a DeviceFailure (common/model/device_failure.h) that names
// the kernel if one hangs or makes the device refuse all work; the process must then end.
absl::Status SetUpKernels(const KernelUse& use,
                          const std::function<absl::StatusOr<ModelConfig>()>& read_config);
// Does the same for the model of a directory.
absl::Status SetUpKernels(const KernelUse& use, const std::string& model_dir);

// Returns the number of kernels that the check has left out. Thread-safe.
int64_t NumKernelsLeftOut();

}  // namespace taopd
