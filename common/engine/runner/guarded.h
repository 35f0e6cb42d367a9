// Turns the exceptions of LibTorch into a status.
#pragma once

#include <exception>

#include "common/base/status.h"
#include "common/model/out_of_memory.h"

namespace taopd {

// Runs `step` and turns LibTorch's exceptions into a status: RESOURCE_EXHAUSTED for a lack of
// memory, otherwise INTERNAL.
template <typename Step>
absl::Status Guarded(const Step& step) {
  try {
    step();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    if (IsOutOfMemory(error)) return ResourceExhausted("out of memory: ", MessageOf(error));
    return Internal("the model failed: ", MessageOf(error));
  }
}

}  // namespace taopd
