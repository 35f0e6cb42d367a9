#include "trainer/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "common/base/check.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/weights/weights.h"

namespace taopd {

AdamW::AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config,
             const AdamWOptions& options)
    : config_(config),
      gradients_(std::move(parameters), options.layout,
                 options.shard_gradients ? std::optional(options.shard) : std::nullopt),
      shard_(layout().Shard(options.shard)),
      pieces_(layout().Pieces(shard_)) {
  const at::NoGradGuard no_grad;
  // The buffers are as long as the shard, including its gaps.
  int64_t shard_size = 0;
  for (const FlatRange& range : shard_) {
    place_of_range_.push_back(shard_size);
    shard_size += range.size();
  }
  const auto& named = gradients_.parameters();
  const at::Device device = named.empty() ? at::kCPU : named[0].second.device();
  const auto buffer = [&](at::ScalarType dtype) {
    return at::zeros({shard_size},
                     at::TensorOptions().dtype(dtype).device(config.offload ? at::kCPU : device));
  };
  const at::ScalarType moments =
      config.moments == MomentsDtype::kBfloat16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor exp_avg_S = buffer(moments), exp_avg_sq_S = buffer(moments);
  at::Tensor master_S;
  for (const ParameterPiece& piece : pieces_) {
    const int64_t place = PlaceOf(piece);
    const at::Tensor& parameter = named[piece.position].second;
    AdamWState state;
    state.parameter = ElementsOf(parameter, piece);
    state.gradient = gradients_.Range({piece.flat_begin, piece.flat_begin + piece.size});
    state.exp_avg = exp_avg_S.narrow(0, place, piece.size);
    state.exp_avg_sq = exp_avg_sq_S.narrow(0, place, piece.size);
    if (HasMaster(parameter)) {
      if (!master_S.defined()) master_S = buffer(at::kFloat);
      state.master = master_S.narrow(0, place, piece.size);
    } else if (parameter.scalar_type() == at::kFloat && !config.offload) {
      state.master = state.parameter;
    }
    state.weight_decay = parameter.dim() >= 2 ? config.weight_decay : 0.0;
    state.number = piece.position;
    state.first_element = piece.offset;
    states_.push_back(std::move(state));
  }
  CopyParametersToMasters();
  if (options.keeps_average) {
    average_S_ = buffer(at::kFloat);
    UpdateAverage(0);
  }
  if (config.offload) host_ = std::make_unique<HostUpdate>(states_);
}

int64_t AdamW::PlaceOf(const ParameterPiece& piece) const {
  size_t range = 0;
  while (shard_[range].end <= piece.flat_begin) ++range;
  return place_of_range_[range] + piece.flat_begin - shard_[range].begin;
}

void AdamW::UpdateAverage(double decay) {
  const at::NoGradGuard no_grad;
  TAOPD_CHECK(keeps_average());
  ++num_changes_;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const AdamWState& state = states_[i];
    at::Tensor average = AverageOf(pieces_[i]);
    const at::Tensor& weights = state.master.defined() ? state.master : state.parameter;
    if (decay == 0) {
      average.copy_(weights);
      continue;
    }
    // at::add with a factor rounds once or twice, depending on the element's place in the tensor.
    const at::Tensor added = weights.to(average.device(), at::kFloat).mul(1 - decay);
    average.mul_(decay).add_(added);
  }
}

void AdamW::CopyParametersToMasters() {
  const at::NoGradGuard no_grad;
  for (AdamWState& state : states_) {
    if (HasMaster(state.parameter)) state.master.copy_(state.parameter);
  }
}

double AdamW::GradientNorm() const {
  TAOPD_CHECK(gradients_.AreInPlace());
  std::vector<at::Tensor> gradients;
  for (const AdamWState& state : states_) gradients.push_back(state.gradient);
  return std::sqrt(SumOfSquares(gradients));
}

void AdamW::Update(double lr, double grad_norm) {
  const at::NoGradGuard no_grad;
  TAOPD_CHECK(gradients_.AreInPlace());
  ++num_updates_;
  ++num_changes_;
  AdamWSettings settings = {.lr = lr,
                            .beta1 = config_.betas[0],
                            .beta2 = config_.betas[1],
                            .eps = config_.eps,
                            .step = num_updates_};
  if (config_.max_grad_norm > 0 && grad_norm > config_.max_grad_norm) {
    settings.gradient_scale = config_.max_grad_norm / grad_norm;
  }
  if (host_) {
    host_->Update(settings);
  } else {
    UpdateAdamW(settings, states_);
  }
  gradients_.Zero();
}

std::vector<AdamW::StateSlice> AdamW::State() const {
  std::vector<StateSlice> state;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto& [name, parameter] = gradients_.parameters()[pieces_[i].position];
    const auto add = [&](const char* kind, const at::Tensor& values) {
      state.push_back({kind + name, parameter.sizes().vec(), pieces_[i].offset, values});
    };
    add(kExpAvgPrefix, states_[i].exp_avg);
    add(kExpAvgSqPrefix, states_[i].exp_avg_sq);
    if (HasMaster(parameter)) add(kMasterPrefix, states_[i].master);
    if (keeps_average()) add(kAveragePrefix, AverageOf(pieces_[i]));
  }
  return state;
}

std::map<std::string, std::vector<int64_t>> AdamW::SavedShapes(bool with_masters,
                                                               bool with_averages) const {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, parameter] : gradients_.parameters()) {
    shapes[kExpAvgPrefix + name] = shapes[kExpAvgSqPrefix + name] = parameter.sizes().vec();
    if (with_masters && parameter.scalar_type() != at::kFloat) {
      shapes[kMasterPrefix + name] = parameter.sizes().vec();
    }
    if (with_averages) shapes[kAveragePrefix + name] = parameter.sizes().vec();
  }
  return shapes;
}

StateToWrite AdamW::StateToSave(bool copies) const {
  TAOPD_CHECK_EQ(layout().num_shards(), 1);
  StateToWrite state(num_updates_);
  for (const StateSlice& slice : State()) state.Add(slice.name, slice.shape, slice.values, copies);
  return state;
}

absl::Status AdamW::Load(const std::string& path) {
  const at::NoGradGuard no_grad;
  TAOPD_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file,
                         SafetensorsFile::Open(path));
  TAOPD_ASSIGN_OR_RETURN(const int64_t num_updates, NumUpdatesOf(*file));
  const auto& tensors = file->tensors();
  const auto has = [&](const char* kind) {
    return std::ranges::any_of(tensors,
                               [&](const auto& tensor) { return tensor.first.starts_with(kind); });
  };
  const bool has_masters = has(kMasterPrefix), has_averages = has(kAveragePrefix);
  const auto shapes = SavedShapes(has_masters, has_averages);
  if (shapes.size() != file->tensors().size()) {
    return DataLoss(path, ": holds ", file->tensors().size(),
                    " tensors, the optimizer of this model has ", shapes.size());
  }
  for (const auto& [name, shape] : shapes) {
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) return DataLoss(path, ": tensor ", name, " is missing");
    if (!IsStateDtype(name, found->second.dtype) || found->second.shape != shape) {
      return DataLoss(path, ": tensor ", name, " has another type or shape than the parameter");
    }
  }
  for (StateSlice& slice : State()) {
    if (!has_masters && slice.name.starts_with(kMasterPrefix)) continue;
    if (!has_averages && slice.name.starts_with(kAveragePrefix)) continue;
    const TensorView& view = file->tensors().at(slice.name);
    const at::ScalarType stored = *ScalarTypeOfSafetensors(view.dtype);
    at::Tensor loaded = at::empty(slice.values.sizes(), at::TensorOptions().dtype(stored));
    if (loaded.numel() > 0) {
      const size_t begin = slice.offset * c10::elementSize(stored);
      std::memcpy(loaded.mutable_data_ptr(), view.bytes.data() + begin, loaded.nbytes());
    }
    slice.values.copy_(loaded);
  }
  CompleteState(num_updates, has_masters, has_averages);
  return absl::OkStatus();
}

void AdamW::CompleteState(int64_t num_updates, bool has_masters, bool has_averages) {
  if (!has_masters) CopyParametersToMasters();
  if (!has_averages && keeps_average()) UpdateAverage(0);
  num_updates_ = num_updates;
}

}  // namespace taopd
