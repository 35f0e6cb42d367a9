// Turns the exceptions of LibTorch into a status.
#pragma once

#include <c10/util/Exception.h>

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
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const char* what =
        torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
    if (IsOutOfMemory(error)) return ResourceExhausted("out of memory: ", what);
    return Internal("the model failed: ", what);
  }
}

}  // namespace taopd
