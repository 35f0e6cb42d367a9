// The values of `--kernels` (taopd-teacher) and `trainer.kernels`, for code that must not include
// LibTorch. common/model/kernel_setup.h acts on them.
#pragma once

#include "common/config/settings.h"

namespace taopd {

enum class KernelMode {
  kAuto,      // the project's own kernels; on a GPU, only those that pass a check at the start
  kComposed,  // compositions of LibTorch operations instead of them, on every device
  kCustom,    // all of the project's own kernels, without a check
};
inline EnumNames<KernelMode> NamesOf(KernelMode) {
  return {{KernelMode::kAuto, "auto"},
          {KernelMode::kComposed, "composed"},
          {KernelMode::kCustom, "custom"}};
}

}  // namespace taopd
