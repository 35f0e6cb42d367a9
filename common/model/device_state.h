// Tells an error that a device survives from one after which it refuses all work until the process
// ends, as CUDA devices do after a fault of a kernel.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace taopd {

// Returns whether the current CUDA device refuses all work; false in a process that has not used
// one.
bool CudaDeviceIsLost();

// Returns the message for the end of the process: what failed, and the custom kernel that was
// launched last.
std::string DeviceFailureText(const std::string& error);

}  // namespace taopd
