#include "kernels/torch/layers/adamw.h"

#include <cstring>

#include "kernels/torch/data_type.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/device_kernels.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

void CheckUpdateTensor(const char* name, const at::Tensor& tensor, const at::Tensor& parameter,
                       bool bfloat16_allowed) {
  const bool type_fits = tensor.scalar_type() == at::kFloat ||
                         (bfloat16_allowed && tensor.scalar_type() == at::kBFloat16);
  TORCH_CHECK(type_fits, name, " is ", tensor.scalar_type(), ", must be float32",
              bfloat16_allowed ? " or bfloat16" : "");
  TORCH_CHECK(tensor.sizes() == parameter.sizes() && tensor.device() == parameter.device(), name,
              " has shape ", tensor.sizes(), " on ", tensor.device(), " but its parameter has ",
              parameter.sizes(), " on ", parameter.device());
  TORCH_CHECK(tensor.is_contiguous(), name, " of shape ", tensor.sizes(), " has strides ",
              tensor.strides(), ", must be contiguous");
}

struct NumberedTensors {
  std::vector<AdamWTensor> tensors;
  int64_t num_blocks = 0;
  at::Device device = at::kCPU;
};

void AddTensor(const AdamWTensor& tensor, at::Device device, NumberedTensors* collected) {
  if (collected->tensors.empty()) collected->device = device;
  TORCH_CHECK(device == collected->device, "parameters on ", collected->device, " and on ", device);
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "AdamW on ", device, " is not implemented");
  collected->tensors.push_back(tensor);
}

AdamWTensor GradientOnly(const at::Tensor& gradient) {
  AdamWTensor tensor;
  tensor.size = gradient.numel();
  tensor.gradient_type = DataTypeOf(gradient.scalar_type());
  tensor.gradient = gradient.const_data_ptr();
  return tensor;
}

NumberedTensors CollectGradients(const std::vector<at::Tensor>& gradients) {
  NumberedTensors collected;
  for (const at::Tensor& gradient : gradients) {
    CheckUpdateTensor("gradient", gradient, gradient, /*bfloat16_allowed=*/true);
    AddTensor(GradientOnly(gradient), gradient.device(), &collected);
  }
  collected.num_blocks = NumberBlocks(&collected.tensors);
  return collected;
}

NumberedTensors Collect(const std::vector<AdamWState>& states) {
  NumberedTensors collected;
  for (const AdamWState& state : states) {
    if (!state.gradient.defined()) continue;
    const at::Tensor& parameter = state.parameter;
    CheckUpdateTensor("parameter", parameter, parameter, /*bfloat16_allowed=*/true);
    CheckUpdateTensor("gradient", state.gradient, parameter, /*bfloat16_allowed=*/true);
    const bool has_master = state.master.defined();
    TORCH_CHECK(has_master || parameter.scalar_type() == at::kBFloat16, "a parameter of type ",
                parameter.scalar_type(), " has no master");
    if (has_master)
      CheckUpdateTensor("master", state.master, parameter, /*bfloat16_allowed=*/false);
    CheckUpdateTensor("exp_avg", state.exp_avg, parameter, /*bfloat16_allowed=*/true);
    CheckUpdateTensor("exp_avg_sq", state.exp_avg_sq, parameter, /*bfloat16_allowed=*/true);
    TORCH_CHECK(state.exp_avg.scalar_type() == state.exp_avg_sq.scalar_type(), "exp_avg is ",
                state.exp_avg.scalar_type(), " but exp_avg_sq is ", state.exp_avg_sq.scalar_type());
    AdamWTensor tensor = GradientOnly(state.gradient);
    if (has_master) tensor.master = state.master.mutable_data_ptr<float>();
    tensor.exp_avg = state.exp_avg.mutable_data_ptr();
    tensor.exp_avg_sq = state.exp_avg_sq.mutable_data_ptr();
    if (state.exp_avg.scalar_type() == at::kBFloat16) tensor.moments_type = DataType::kBFloat16;
    tensor.parameter = state.number;
    tensor.first_element = state.first_element;
    if (parameter.scalar_type() == at::kBFloat16) {
      tensor.bfloat16 = static_cast<uint16_t*>(parameter.mutable_data_ptr());
    }
    tensor.weight_decay = static_cast<float>(state.weight_decay);
    AddTensor(tensor, parameter.device(), &collected);
  }
  collected.num_blocks = NumberBlocks(&collected.tensors);
  return collected;
}

at::Tensor ToDevice(const NumberedTensors& collected) {
  const auto bytes = static_cast<int64_t>(collected.tensors.size() * sizeof(AdamWTensor));
  const at::Tensor on_cpu = at::empty({bytes}, at::kByte);
  std::memcpy(on_cpu.mutable_data_ptr(), collected.tensors.data(), bytes);
  return on_cpu.to(collected.device);
}

// The loops below write through raw pointers. Code that watches a tensor's version must still see
// it change.
void CountVersions(const std::vector<AdamWState>& states) {
  for (const AdamWState& state : states) {
    if (!state.gradient.defined()) continue;
    for (const at::Tensor* written :
         {&state.parameter, &state.master, &state.exp_avg, &state.exp_avg_sq}) {
      // Inference tensors have no version counter.
      if (written->defined() && !written->is_inference())
        written->unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace

void UpdateAdamW(const AdamWSettings& settings, const std::vector<AdamWState>& states) {
  const NumberedTensors collected = Collect(states);
  CountVersions(states);
  if (!UsesCustom(KernelKind::kAdamW)) {
    for (const AdamWState& state : states) {
      if (state.gradient.defined()) UpdateAdamWComposed(settings, state);
    }
    return;
  }
  if (const DeviceKernels* const kernels = DeviceKernelsFor(collected.device)) {
    const at::Tensor tensors_S = ToDevice(collected);
    const DeviceCall call(KernelKind::kAdamW, tensors_S);
    CheckLaunch(kernels->adamw(
        settings, static_cast<const AdamWTensor*>(tensors_S.const_data_ptr()),
        static_cast<int32_t>(collected.tensors.size()), collected.num_blocks, call.Context()));
    return;
  }
  TORCH_CHECK(collected.device.is_cpu(), "this build has no AdamW on ", collected.device);
  cpu::AdamW(settings, collected.tensors, TorchParallelFor());
}

double SumOfSquares(const std::vector<at::Tensor>& tensors) {
  const NumberedTensors collected = CollectGradients(tensors);
  if (!UsesCustom(KernelKind::kAdamW)) return SumOfSquaresComposed(tensors);
  if (const DeviceKernels* const kernels = DeviceKernelsFor(collected.device)) {
    const at::Tensor tensors_S = ToDevice(collected);
    const DeviceCall call(KernelKind::kAdamW, tensors_S);
    const at::Tensor sums_B = at::empty(
        {collected.num_blocks}, at::TensorOptions().dtype(at::kDouble).device(collected.device));
    CheckLaunch(kernels->sums_of_squares(
        static_cast<const AdamWTensor*>(tensors_S.const_data_ptr()),
        static_cast<int32_t>(collected.tensors.size()), collected.num_blocks,
        sums_B.mutable_data_ptr<double>(), call.Context()));
    // Sums in the order of the blocks, as on the CPU.
    const at::Tensor on_cpu = sums_B.to(at::kCPU);
    double total = 0;
    for (int64_t b = 0; b < collected.num_blocks; ++b) total += on_cpu.const_data_ptr<double>()[b];
    return total;
  }
  TORCH_CHECK(collected.device.is_cpu(), "this build has no sum of squares on ", collected.device);
  return cpu::SumOfSquares(collected.tensors, TorchParallelFor());
}

}  // namespace taopd
