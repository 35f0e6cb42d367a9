#include "common/model/torch_errors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "kernels/torch/device_call.h"

namespace taopd {

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // The allocator of the CPU throws a plain c10::Error, and so do failed calls of CUDA, such as the
  // one that creates a process's context.
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return false;
  const std::string_view text = error.what();
  return text.find("DefaultCPUAllocator: ") != std::string_view::npos ||
         text.find("CUDA error: out of memory") != std::string_view::npos;
}

std::string MessageOf(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

absl::Status StatusOfException(const std::exception& error, const std::string& what) {
  if (IsOutOfMemory(error)) return ResourceExhausted(what, ": out of memory: ", MessageOf(error));
  return Internal(what, ": ", MessageOf(error));
}

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
