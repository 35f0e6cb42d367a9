// Seeded random matrices, and their comparison with products in float64.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace taopd::testing {

// Returns standard normal numbers, float32.
inline at::Tensor RandomTensor(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kFloat));
}

// Expects every element to be within `tolerance` times the largest one of `expected`, which counts
// as at least `smallest_size`.
inline void ExpectRelative(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                           const std::string& what, double smallest_size = 0) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const double size = std::max(smallest_size, expected.abs().max().item<double>());
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * size)
      << what << ", of size " << size;
}

}  // namespace taopd::testing
