#include "common/model/rope.h"

#include <c10/core/InferenceMode.h>

#include <cmath>

namespace taopd {

at::Tensor ApplyRope(const at::Tensor& x_TND, const Rotation& rotation) {
  const at::Tensor halves_swapped = x_TND.roll(x_TND.size(-1) / 2, -1);
  return at::addcmul(x_TND * rotation.cos_T1D, halves_swapped, rotation.sin_T1D);
}

RopeTable::RopeTable(int64_t head_dim, double theta, at::Device device, at::ScalarType dtype)
    : head_dim_(head_dim), device_(device), dtype_(dtype) {
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(head_dim);
    inverse_frequencies_.push_back(static_cast<float>(1.0 / std::pow(theta, exponent)));
  }
}

Rotation RopeTable::Gather(const at::Tensor& positions_T, int64_t num_positions) {
  const auto [cos_PD, sin_PD] = Tables(num_positions);
  return {cos_PD.index_select(0, positions_T).unsqueeze(1),
          sin_PD.index_select(0, positions_T).unsqueeze(1)};
}

std::pair<at::Tensor, at::Tensor> RopeTable::Tables(int64_t num_positions) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cos_PD_.defined() && cos_PD_.size(0) >= num_positions) return {cos_PD_, sin_PD_};
  // Autograd refuses to save tensors that were made under InferenceMode.
  const c10::InferenceMode normal(false);
  const int64_t P = std::max<int64_t>(256, 2 * num_positions);
  const int64_t half = head_dim_ / 2;
  const at::Tensor cos_PD = at::empty({P, head_dim_}, at::kFloat);
  const at::Tensor sin_PD = at::empty({P, head_dim_}, at::kFloat);
  for (int64_t position = 0; position < P; ++position) {
    float* cos_row = cos_PD.data_ptr<float>() + position * head_dim_;
    float* sin_row = sin_PD.data_ptr<float>() + position * head_dim_;
    for (int64_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32 as in transformers: at position 30000 that is 1e-3 of a
      // radian.
      const float angle = static_cast<float>(position) * inverse_frequencies_[i];
      cos_row[i] = cos_row[i + half] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin_row[i + half] = static_cast<float>(std::sin(static_cast<double>(angle)));
      sin_row[i] = -sin_row[i + half];
    }
  }
  cos_PD_ = cos_PD.to(device_, dtype_);
  sin_PD_ = sin_PD.to(device_, dtype_);
  return {cos_PD_, sin_PD_};
}

}  // namespace taopd
