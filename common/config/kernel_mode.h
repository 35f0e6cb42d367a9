// The values of `--kernels` (taopd-teacher) and `trainer.kernels`, for code that must not include
// LibTorch. common/model/kernel_setup.h acts on them.
#pragma once

#include <string>
#include <vector>

namespace taopd {

// The project's own kernels. On a GPU, only those that pass a check at the start.
inline constexpr char kKernelsAuto[] = "auto";
// Compositions of LibTorch operations instead of the project's own kernels, on every device.
inline constexpr char kKernelsComposed[] = "composed";
// All of the project's own kernels, without a check.
inline constexpr char kKernelsCustom[] = "custom";

inline std::vector<std::string> KernelModes() {
  return {kKernelsAuto, kKernelsComposed, kKernelsCustom};
}

}  // namespace taopd
