#include "kernels/torch/self_check/trial.h"

#include <algorithm>
#include <limits>

namespace taopd {

// A NaN on one side only is an infinite error; on both sides it is none.
OutputError Compare(const NamedTensor& custom, const at::Tensor& composed) {
  OutputError result = {custom.name, 0, custom.allowed};
  const at::Tensor a = custom.value.detach().to(at::kFloat);
  const at::Tensor b = composed.detach().to(at::kFloat);
  if (a.numel() == 0) return result;
  const at::Tensor same = a.eq(b).logical_or(at::isnan(a).logical_and(at::isnan(b)));
  const at::Tensor difference = (a - b).abs().masked_fill(same, 0);
  const double largest = difference.max().item<double>();
  const at::Tensor size = b.abs().masked_fill(at::isfinite(b).logical_not(), 0).max();
  const double scale = std::max(size.item<double>(), custom.at_least_one ? 1.0 : 1e-30);
  // max() of a tensor with a NaN is NaN.
  result.error = largest >= 0 ? largest / scale : std::numeric_limits<double>::infinity();
  return result;
}

std::vector<OutputError> Compare(const std::vector<NamedTensor>& custom,
                                 const std::vector<NamedTensor>& composed) {
  std::vector<OutputError> errors;
  for (size_t i = 0; i < custom.size(); ++i) {
    errors.push_back(Compare(custom[i], composed[i].value));
  }
  return errors;
}

RandomNumbers::RandomNumbers(at::Device device, uint64_t seed)
    : options_(at::TensorOptions().device(device)),
      generator_(at::globalContext().defaultGenerator(device).clone()) {
  generator_.set_current_seed(seed);
}

at::Tensor RandomNumbers::Normal(at::IntArrayRef shape, at::ScalarType dtype, double scale) {
  return at::randn(shape, generator_, options_.dtype(dtype)).mul_(scale);
}

at::Tensor RandomNumbers::Uniform(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::rand(shape, generator_, options_.dtype(dtype)).clamp_(1e-6, 1 - 1e-6);
}

at::Tensor RandomNumbers::Ids(at::IntArrayRef shape, int64_t num_ids) {
  return at::randint(num_ids, shape, generator_, options_.dtype(at::kInt));
}

at::Tensor RandomNumbers::NormWeight(int64_t size, at::ScalarType dtype) {
  return Normal({size}, dtype, 0.3).add_(1);
}

RandomNumbers::RotationTables RandomNumbers::Rotations(int64_t num_rows, int64_t head_size,
                                                       at::ScalarType dtype) {
  const at::Tensor angles = Uniform({num_rows, 1, head_size / 2}, at::kFloat).mul_(6);
  return {at::cat({angles.cos(), angles.cos()}, 2).to(dtype),
          at::cat({-angles.sin(), angles.sin()}, 2).to(dtype)};
}

}  // namespace taopd
