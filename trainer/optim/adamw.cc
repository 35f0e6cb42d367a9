#include "trainer/optim/adamw.h"

#include <cmath>
#include <cstring>
#include <map>

#include "common/io/safetensors.h"

namespace taopd {

AdamW::AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config) : config_(config) {
  at::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters) {
    Slot slot;
    slot.name = name;
    slot.parameter = parameter;
    slot.master = parameter.scalar_type() == at::kFloat ? parameter : parameter.detach().to(at::kFloat);
    slot.exp_avg = at::zeros_like(slot.master, at::MemoryFormat::Contiguous);
    slot.exp_avg_sq = at::zeros_like(slot.master, at::MemoryFormat::Contiguous);
    slot.weight_decay = parameter.dim() >= 2 ? config.weight_decay : 0.0;
    slots_.push_back(std::move(slot));
  }
}

void AdamW::AccumulateGradients() {
  at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    at::Tensor& grad = slot.parameter.mutable_grad();
    if (!grad.defined()) continue;
    if (!slot.grad_sum.defined()) {
      slot.grad_sum = grad.to(at::kFloat);
    } else {
      slot.grad_sum.add_(grad);
    }
    grad.reset();
  }
}

double AdamW::GradientNorm() const {
  at::NoGradGuard no_grad;
  double sum_of_squares = 0;  // per-tensor norms on the device, their squares in double, in a fixed order
  for (const Slot& slot : slots_) {
    if (!slot.grad_sum.defined()) continue;
    const double norm = at::linalg_vector_norm(slot.grad_sum, 2).item<double>();
    sum_of_squares += norm * norm;
  }
  return std::sqrt(sum_of_squares);
}

void AdamW::Update(double lr, double grad_norm) {
  at::NoGradGuard no_grad;
  ++num_updates_;
  const double clip = config_.max_grad_norm > 0 && grad_norm > config_.max_grad_norm
                          ? config_.max_grad_norm / grad_norm
                          : 1.0;
  for (Slot& slot : slots_) {
    if (!slot.grad_sum.defined()) continue;
    if (clip != 1.0) slot.grad_sum.mul_(clip);
    // detach() shares the storage and lets an in-place update pass for leaves that require grad.
    at::Tensor master = slot.master.detach();
    at::Tensor step = at::full({}, static_cast<double>(num_updates_), master.options());
    at::_fused_adamw_({master}, {slot.grad_sum}, {slot.exp_avg}, {slot.exp_avg_sq}, /*max_exp_avg_sqs=*/{}, {step}, lr,
                      config_.betas[0], config_.betas[1], slot.weight_decay, config_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
    if (slot.parameter.scalar_type() != at::kFloat) slot.parameter.detach().copy_(slot.master);
  }
  ClearGradients();
}

void AdamW::ClearGradients() {
  for (Slot& slot : slots_) {
    slot.grad_sum.reset();
    slot.parameter.mutable_grad().reset();
  }
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::State() const {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (const Slot& slot : slots_) {
    state.emplace_back("exp_avg." + slot.name, slot.exp_avg);
    state.emplace_back("exp_avg_sq." + slot.name, slot.exp_avg_sq);
    if (slot.parameter.scalar_type() != at::kFloat) state.emplace_back("master." + slot.name, slot.master);
  }
  return state;
}

absl::Status AdamW::Save(const std::string& path) const {
  std::vector<at::Tensor> on_cpu;  // keeps the bytes alive while they are written
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : State()) {
    on_cpu.push_back(tensor.to(at::kCPU).contiguous());
    const at::Tensor& cpu = on_cpu.back();
    tensors.push_back({name, "F32", cpu.sizes().vec(),
                       {static_cast<const std::byte*>(cpu.const_data_ptr()), cpu.nbytes()}});
  }
  return WriteSafetensors(path, tensors, {{"num_updates", std::to_string(num_updates_)}});
}

absl::Status AdamW::Load(const std::string& path) {
  at::NoGradGuard no_grad;
  TAOPD_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
  const auto count = file->metadata().find("num_updates");
  if (count == file->metadata().end() || count->second.empty() || count->second.size() > 18 ||
      count->second.find_first_not_of("0123456789") != std::string::npos) {
    return DataLoss(path, ": no num_updates in the metadata");
  }
  const auto state = State();
  if (state.size() != file->tensors().size()) {
    return DataLoss(path, ": holds ", file->tensors().size(), " tensors, the optimizer of this model has ", state.size());
  }
  for (const auto& [name, tensor] : state) {
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) return DataLoss(path, ": tensor ", name, " is missing");
    if (found->second.dtype != "F32" || found->second.shape != tensor.sizes().vec()) {
      return DataLoss(path, ": tensor ", name, " has another type or shape than the parameter");
    }
  }
  for (const auto& [name, tensor] : state) {
    const TensorView& view = file->tensors().at(name);
    at::Tensor loaded = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat));
    if (!view.bytes.empty()) std::memcpy(loaded.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    at::Tensor target = tensor;
    target.copy_(loaded);
  }
  num_updates_ = std::stoll(count->second);
  return absl::OkStatus();
}

}  // namespace taopd
