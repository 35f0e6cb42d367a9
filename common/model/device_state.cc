#include "common/model/device_state.h"

#include <exception>

#include "common/base/status.h"
#include "kernels/torch/device_call.h"

namespace taopd {

bool CudaDeviceIsLost() {
  if (!at::hasCUDA()) return false;
  const auto& hooks = at::detail::getCUDAHooks();
  try {
    const at::DeviceIndex device = hooks.getCurrentDevice();
    return hooks.hasPrimaryContext(device) && !DeviceAnswers(at::Device(at::kCUDA, device));
  } catch (const std::exception&) {
    return true;
  }
}

std::string DeviceFailureText(const std::string& error) {
  return Concat("the device failed and needs a new process; the custom kernel that ran last: ",
                LastDeviceKernel(), "; ", error);
}

}  // namespace taopd
