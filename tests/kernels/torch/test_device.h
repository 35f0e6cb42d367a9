// The device of tests that run on a GPU and, with the emulated run-time, on the CPU.
#pragma once

#include <ATen/ATen.h>

namespace taopd::testing {

// CUDA in the test binaries of tests/gpu (cuda_device.cc), otherwise the CPU (emulated_device.cc).
at::Device TestDevice();

}  // namespace taopd::testing
