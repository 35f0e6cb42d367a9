// Root mean square norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight, computed in
// fp32 whatever x is (Zhang and Sennrich, arXiv:1910.07467; the order of roundings is
// transformers').
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// x [..., H], weight [H], of one dtype; the result has x's shape and dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight_H, double eps);

}  // namespace taopd
