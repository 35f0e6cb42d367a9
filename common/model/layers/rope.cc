#include "common/model/layers/rope.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace taopd {
namespace {

// Divides the frequency of pairs whose wavelength is long compared with the pre-training context,
// keeps that of short ones, and interpolates between the two.
at::Tensor ScaleLlama3(const RopeConfig& config, const at::Tensor& frequencies) {
  const auto context = static_cast<double>(config.original_max_position_embeddings);
  const double low = config.low_freq_factor, high = config.high_freq_factor;
  const at::Tensor wavelengths = frequencies.reciprocal() * (2.0 * std::numbers::pi);
  const at::Tensor is_long = wavelengths > context / low;
  const at::Tensor divided = at::where(is_long, frequencies / config.factor, frequencies);
  const at::Tensor smooth = (wavelengths.reciprocal() * context - low) / (high - low);
  const at::Tensor smoothed = smooth.neg().add(1.0) * divided / config.factor + smooth * divided;
  const at::Tensor is_medium =
      at::logical_not(wavelengths < context / high).logical_and(at::logical_not(is_long));
  return at::where(is_medium, smoothed, divided);
}

// Returns the index of the pair that turns num_rotations times within the pre-training context.
double YarnCorrectionPair(const RopeConfig& config, int64_t head_dim, double num_rotations) {
  const auto context = static_cast<double>(config.original_max_position_embeddings);
  return static_cast<double>(head_dim) *
         std::log(context / (num_rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.theta));
}

at::Tensor ScaleYarn(const RopeConfig& config, int64_t head_dim, const at::Tensor& powers) {
  double low = YarnCorrectionPair(config, head_dim, config.beta_fast);
  double high = YarnCorrectionPair(config, head_dim, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // as in transformers: avoids a division by zero
  const at::Tensor ramp =
      ((at::arange(head_dim / 2, at::kFloat) - low) / (high - low)).clamp(0.0, 1.0);
  const at::Tensor keep = ramp.neg().add(1.0);
  return (powers * config.factor).reciprocal() * keep.neg().add(1.0) + powers.reciprocal() * keep;
}

double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

at::Tensor InverseFrequencies(const RopeConfig& config, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor powers = at::pow(at::Scalar(config.theta), exponents);
  switch (config.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      return powers.reciprocal();
    case RopeType::kLinear:
      return powers.reciprocal() / config.factor;
    case RopeType::kYarn:
      return ScaleYarn(config, head_dim, powers);
    case RopeType::kLlama3:
      return ScaleLlama3(config, powers.reciprocal());
  }
  return {};
}

double RopeAttentionFactor(const RopeConfig& config) {
  if (config.type != RopeType::kYarn) return 1.0;
  if (config.attention_factor) return *config.attention_factor;
  if (config.mscale != 0.0 && config.mscale_all_dim != 0.0) {
    return YarnMscale(config.factor, config.mscale) /
           YarnMscale(config.factor, config.mscale_all_dim);
  }
  return YarnMscale(config.factor, 1.0);
}

Rotation RopeTable::Gather(const at::Tensor& positions_T, int64_t num_positions) {
  const auto [cos_PD, sin_PD] = Tables(num_positions);
  return {cos_PD.index_select(0, positions_T).unsqueeze(1),
          sin_PD.index_select(0, positions_T).unsqueeze(1)};
}

std::vector<const void*> RopeTable::Addresses() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cos_PD_.defined()) return {};
  return {cos_PD_.const_data_ptr(), sin_PD_.const_data_ptr()};
}

std::pair<at::Tensor, at::Tensor> RopeTable::Tables(int64_t num_positions) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cos_PD_.defined() && cos_PD_.size(0) >= num_positions) return {cos_PD_, sin_PD_};
  // Autograd refuses to save tensors that were made under InferenceMode.
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  const int64_t P = std::max<int64_t>(256, 2 * num_positions);
  // The angle is rounded to float32 as in transformers: at position 30000 that is 1e-3 of a radian.
  const at::Tensor angles_PD =
      at::arange(P, at::kFloat).unsqueeze(1) * inverse_frequencies_.unsqueeze(0);
  const at::Tensor cos_half = angles_PD.cos() * attention_factor_;
  const at::Tensor sin_half = angles_PD.sin() * attention_factor_;
  cos_PD_ = at::cat({cos_half, cos_half}, 1).to(device_, dtype_);
  sin_PD_ = at::cat({sin_half.neg(), sin_half}, 1).to(device_, dtype_);
  return {cos_PD_, sin_PD_};
}

}  // namespace taopd
