#include "trainer/optim/flat_gradients.h"

#include <algorithm>
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
                             const ParameterLayoutOptions& options,
                             std::optional<int64_t> only_shard)
    : parameters_(std::move(parameters)),
      layout_(SizesOf(parameters_), options),
      is_sharded_(only_shard.has_value()) {
  const at::NoGradGuard no_grad;
  const at::Device device = parameters_.empty() ? at::kCPU : parameters_[0].second.device();
  for (const auto& [name, parameter] : parameters_) {
    TAOPD_CHECK(parameter.is_contiguous() && parameter.device() == device);
  }
  const FlatRange all = {0, layout_.size()};
  ranges_ = is_sharded_ ? layout_.Shard(*only_shard) : std::vector<FlatRange>{all};
  int64_t size = 0;
  for (const FlatRange& range : ranges_) {
    places_.push_back(size);
    size += range.size();
  }
  sums_ = at::zeros({size}, at::TensorOptions().dtype(at::kFloat).device(device));
  if (is_sharded_) {
    buffers_.resize(layout_.sections().size());
  } else {
    SetGrads(all, sums_);
  }
}

FlatGradients::~FlatGradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void FlatGradients::SetGrads(FlatRange range, const at::Tensor& buffer) {
  const std::vector<ParameterSlot>& slots = layout_.slots();
  auto slot = std::partition_point(slots.begin(), slots.end(), [&](const ParameterSlot& before) {
    return before.begin < range.begin;
  });
  for (; slot != slots.end() && slot->begin < range.end; ++slot) {
    at::Tensor& parameter = parameters_[slot->position].second;
    parameter.mutable_grad() =
        buffer.defined()
            ? buffer.narrow(0, slot->begin - range.begin, slot->size).view(parameter.sizes())
            : at::Tensor();
  }
}

at::Tensor FlatGradients::Range(FlatRange range) const {
  size_t i = 0;
  while (i + 1 < ranges_.size() && ranges_[i].end <= range.begin) ++i;
  TAOPD_CHECK(i < ranges_.size() && ranges_[i].begin <= range.begin && range.end <= ranges_[i].end);
  return sums_.narrow(0, places_[i] + range.begin - ranges_[i].begin, range.size());
}

void FlatGradients::Open(int64_t section, at::Tensor buffer) {
  const FlatRange range = layout_.sections()[section].range;
  TAOPD_CHECK(is_sharded_ && !buffers_[section].defined());
  TAOPD_CHECK_EQ(buffer.numel(), range.size());
  const at::NoGradGuard no_grad;
  buffer.zero_();
  SetGrads(range, buffer);
  buffers_[section] = std::move(buffer);
}

at::Tensor FlatGradients::Close(int64_t section) {
  SetGrads(layout_.sections()[section].range, at::Tensor());
  return std::exchange(buffers_[section], at::Tensor());
}

void FlatGradients::CloseAll() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].defined()) Close(static_cast<int64_t>(i));
  }
}

void FlatGradients::Zero() {
  const at::NoGradGuard no_grad;
  sums_.zero_();
}

bool FlatGradients::AreInPlace() const {
  const auto is_in_place = [&](const ParameterSlot& slot, int64_t begin, const at::Tensor& buffer) {
    const at::Tensor& grad = parameters_[slot.position].second.grad();
    if (!buffer.defined()) return !grad.defined();
    return grad.defined() && grad.scalar_type() == at::kFloat && grad.numel() == slot.size &&
           (slot.size == 0 ||
            grad.const_data_ptr<float>() == buffer.const_data_ptr<float>() + slot.begin - begin);
  };
  size_t section = 0;
  for (const ParameterSlot& slot : layout_.slots()) {
    if (!is_sharded_) {
      if (!is_in_place(slot, 0, sums_)) return false;
      continue;
    }
    const std::vector<GradientSection>& sections = layout_.sections();
    while (section + 1 < sections.size() && sections[section].range.end <= slot.begin) ++section;
    if (!is_in_place(slot, sections[section].range.begin, buffers_[section])) return false;
  }
  return true;
}

}  // namespace taopd
