#include "trainer/optim/flat_gradients.h"

#include <utility>

#include "common/base/check.h"

namespace taopd {
namespace {

std::vector<ParameterLayout::NamedSize> SizesOf(const std::vector<NamedParameter>& parameters) {
  std::vector<ParameterLayout::NamedSize> sizes;
  for (const auto& [name, parameter] : parameters) sizes.push_back({name, parameter.numel()});
  return sizes;
}

}  // namespace

FlatGradients::FlatGradients(std::vector<NamedParameter> parameters,
                             const ParameterLayoutOptions& options)
    : parameters_(std::move(parameters)), layout_(SizesOf(parameters_), options) {
  const at::NoGradGuard no_grad;
  const at::Device device = parameters_.empty() ? at::kCPU : parameters_[0].second.device();
  all_F_ = at::zeros({layout_.size()}, at::TensorOptions().dtype(at::kFloat).device(device));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].second;
    TAOPD_CHECK(parameter.is_contiguous() && parameter.device() == device);
    const ParameterSlot& slot = layout_.slot(static_cast<int64_t>(i));
    parameter.mutable_grad() = all_F_.narrow(0, slot.begin, slot.size).view(parameter.sizes());
  }
}

FlatGradients::~FlatGradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

at::Tensor FlatGradients::Range(FlatRange range) const {
  return all_F_.narrow(0, range.begin, range.size());
}

void FlatGradients::Zero() {
  const at::NoGradGuard no_grad;
  all_F_.zero_();
}

bool FlatGradients::AreInPlace() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].second.grad();
    const ParameterSlot& slot = layout_.slot(static_cast<int64_t>(i));
    if (!grad.defined() || grad.scalar_type() != at::kFloat || grad.numel() != slot.size ||
        (slot.size > 0 &&
         grad.const_data_ptr<float>() != all_F_.const_data_ptr<float>() + slot.begin)) {
      return false;
    }
  }
  return true;
}

}  // namespace taopd
