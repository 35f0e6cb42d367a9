// Asynchronous copies from the host to a device.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// Returns a copy of `host` in pinned memory, from which a GPU copies by itself, or `host` for other
// devices. LibTorch reuses the memory only after the copies from it are done.
inline at::Tensor Pinned(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory() : host;
}

// Returns a copy of `host` on the device, ordered with the work of the current stream. `host` may
// be written as soon as the call returns. On a CPU it returns `host` itself.
inline at::Tensor Upload(const at::Tensor& host, at::Device device) {
  return Pinned(host, device).to(host.options().device(device), /*non_blocking=*/true);
}

}  // namespace taopd
