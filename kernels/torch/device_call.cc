#include "kernels/torch/device_call.h"

#include <atomic>
#include <exception>
#ifdef TAOPD_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#endif

namespace taopd {
namespace {

constexpr int kNone = -1;
std::atomic<int> last_kind{kNone};

}  // namespace

DeviceCall::DeviceCall(KernelKind kind, const at::Tensor& like) : is_cuda_(like.is_cuda()) {
#ifdef TAOPD_CUDA
  if (is_cuda_) guard_.set_device(like.device());
#endif
  last_kind.store(static_cast<int>(kind), std::memory_order_relaxed);
}

DeviceContext DeviceCall::Context(const at::Tensor& workspace) const {
  DeviceContext context;
#ifdef TAOPD_CUDA
  if (is_cuda_) context.stream = at::cuda::getCurrentCUDAStream().stream();
#endif
  if (workspace.defined()) {
    context.workspace = workspace.mutable_data_ptr();
    context.workspace_bytes = workspace.numel();
  }
  return context;
}

DeviceContext DeviceCall::ContextForProducts(const at::Tensor& workspace) const {
  DeviceContext context = Context(workspace);
#ifdef TAOPD_CUDA
  if (is_cuda_) context.cublaslt = at::cuda::getCurrentCUDABlasLtHandle();
#endif
  return context;
}

bool DeviceAnswers(at::Device device) {
  if (device.is_cpu()) return true;
  try {
    at::ones({1}, at::TensorOptions().device(device)).sum().cpu();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string_view LastDeviceKernel() {
  const int kind = last_kind.load(std::memory_order_relaxed);
  return kind == kNone ? "none" : NameOf(static_cast<KernelKind>(kind));
}

}  // namespace taopd
