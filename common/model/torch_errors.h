// Exceptions of LibTorch and the standard library: what they say, whether memory ran out, and
// whether the device survives them.
#pragma once

#include <exception>
#include <string>

#include "common/base/status.h"

namespace taopd {

// Whether `error` was thrown because the memory of the machine or of a device ran out.
bool IsOutOfMemory(const std::exception& error);

// Returns what `error` says, without the stack trace that LibTorch appends to its errors.
std::string MessageOf(const std::exception& error);

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

// Returns whether the current CUDA device refuses all work until the process ends, as it does after
// a fault of a kernel; false in a process that has not used one.
bool CudaDeviceIsLost();

// Returns the message for the end of the process: what failed, and the custom kernel that was
// launched last.
std::string DeviceFailureText(const std::string& error);

}  // namespace taopd
