#include "trainer/optim/adamw.h"

#include <cmath>
#include <cstring>
#include <map>

#include "common/io/safetensors/safetensors.h"

namespace taopd {

AdamW::AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config)
    : config_(config) {
  at::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters) {
    AdamWState state;
    state.parameter = parameter;
    state.master =
        parameter.scalar_type() == at::kFloat ? parameter : parameter.detach().to(at::kFloat);
    state.exp_avg = at::zeros_like(state.master, at::MemoryFormat::Contiguous);
    state.exp_avg_sq = at::zeros_like(state.master, at::MemoryFormat::Contiguous);
    state.weight_decay = parameter.dim() >= 2 ? config.weight_decay : 0.0;
    names_.push_back(name);
    states_.push_back(std::move(state));
  }
}

void AdamW::AccumulateGradients() {
  at::NoGradGuard no_grad;
  for (AdamWState& state : states_) {
    at::Tensor& grad = state.parameter.mutable_grad();
    if (!grad.defined()) continue;
    if (!state.gradient.defined()) {
      state.gradient = grad.contiguous();
    } else {
      if (state.gradient.scalar_type() != at::kFloat)
        state.gradient = state.gradient.to(at::kFloat);
      state.gradient.add_(grad);
    }
    grad.reset();
  }
}

double AdamW::GradientNorm() const { return taopd::GradientNorm(states_); }

void AdamW::Update(double lr, double grad_norm) {
  at::NoGradGuard no_grad;
  ++num_updates_;
  AdamWSettings settings;
  settings.lr = lr;
  settings.beta1 = config_.betas[0];
  settings.beta2 = config_.betas[1];
  settings.eps = config_.eps;
  settings.step = num_updates_;
  if (config_.max_grad_norm > 0 && grad_norm > config_.max_grad_norm) {
    settings.gradient_scale = config_.max_grad_norm / grad_norm;
  }
  UpdateAdamW(settings, states_);
  ClearGradients();
}

void AdamW::ClearGradients() {
  for (AdamWState& state : states_) {
    state.gradient.reset();
    state.parameter.mutable_grad().reset();
  }
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::State() const {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (size_t i = 0; i < states_.size(); ++i) {
    state.emplace_back("exp_avg." + names_[i], states_[i].exp_avg);
    state.emplace_back("exp_avg_sq." + names_[i], states_[i].exp_avg_sq);
    if (states_[i].parameter.scalar_type() != at::kFloat)
      state.emplace_back("master." + names_[i], states_[i].master);
  }
  return state;
}

absl::Status AdamW::Save(const std::string& path) const {
  std::vector<at::Tensor> on_cpu;  // keeps the bytes alive while they are written
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : State()) {
    on_cpu.push_back(tensor.to(at::kCPU).contiguous());
    const at::Tensor& cpu = on_cpu.back();
    tensors.push_back({name,
                       "F32",
                       cpu.sizes().vec(),
                       {static_cast<const std::byte*>(cpu.const_data_ptr()), cpu.nbytes()}});
  }
  return WriteSafetensors(path, tensors, {{"num_updates", std::to_string(num_updates_)}});
}

absl::Status AdamW::Load(const std::string& path) {
  at::NoGradGuard no_grad;
  TAOPD_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file,
                         SafetensorsFile::Open(path));
  const auto count = file->metadata().find("num_updates");
  if (count == file->metadata().end() || count->second.empty() || count->second.size() > 18 ||
      count->second.find_first_not_of("0123456789") != std::string::npos) {
    return DataLoss(path, ": no num_updates in the metadata");
  }
  const auto state = State();
  if (state.size() != file->tensors().size()) {
    return DataLoss(path, ": holds ", file->tensors().size(),
                    " tensors, the optimizer of this model has ", state.size());
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
    if (!view.bytes.empty())
      std::memcpy(loaded.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    at::Tensor target = tensor;
    target.copy_(loaded);
  }
  num_updates_ = std::stoll(count->second);
  return absl::OkStatus();
}

}  // namespace taopd
