// Exceptions of LibTorch and the standard library: what they say, whether memory ran out, and
// whether the device survives them.
#pragma once

#include <exception>
#include <string>

#include "common/base/status.h"

namespace taopd {

// Returns whether `error` was thrown because the memory of the machine or of a device ran out.
bool IsOutOfMemory(const std::exception& error);

// Returns what `error` says, without the stack trace that LibTorch appends to its errors.
std::string MessageOf(const std::exception& error);

// Returns RESOURCE_EXHAUSTED, "<what>: out of memory: <message>", for a lack of memory, and
// otherwise INTERNAL, "<what>: <message>".
absl::Status StatusOfException(const std::exception& error, const std::string& what);

// Runs `step` and turns exceptions into a status, as StatusOfException does.
template <typename Step>
absl::Status CatchTorchErrors(const Step& step) {
  try {
    step();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return StatusOfException(error, "the model failed");
  }
}

// Returns whether the current CUDA device refuses all work until the process ends, as it does after
// a fault of a kernel; false in a process that has not used one.
bool CudaDeviceIsLost();

// Returns the message for the end of the process: what failed, and the custom kernel that was
// launched last.
std::string DeviceFailureText(const std::string& error);

}  // namespace taopd
