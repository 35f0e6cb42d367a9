// The set-up of a call of a custom device kernel on tensors: the current device and stream, and the
// record of the kernel's name. On tensors of a CPU it sets up nothing, so the tests can call the
// kernels of the emulated run-time through the same code.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <string_view>

#include "kernels/torch/kernel_choice.h"
#include "taopd/base/device.h"
#ifdef TAOPD_CUDA
#include <c10/cuda/CUDAGuard.h>
#endif

namespace taopd {

// While the object exists, the tensors' device is the current one.
class DeviceCall {
 public:
  DeviceCall(KernelKind kind, const at::Tensor& like);

  // Returns ATen's stream of the device and this workspace, which may be undefined.
  DeviceContext Context(const at::Tensor& workspace = at::Tensor()) const;
  // The same, with ATen's cuBLASLt handle.
  DeviceContext ContextForProducts(const at::Tensor& workspace) const;

 private:
  const bool is_cuda_;
#ifdef TAOPD_CUDA
  c10::cuda::OptionalCUDAGuard guard_;
#endif
};

// Throws c10::Error with the problem that a launch has returned, unless it is empty.
inline void CheckLaunch(const std::string& problem) { TORCH_CHECK(problem.empty(), problem); }

// Computes a number on the device, waits for it, and returns whether it came. Always true on a CPU.
bool DeviceAnswers(at::Device device);

// Returns the name of the custom kernel that this process launched last on a device, or "none".
// Errors of a device are asynchronous: the kernel that failed is this one or an earlier one.
// Thread-safe.
std::string_view LastDeviceKernel();

}  // namespace taopd
