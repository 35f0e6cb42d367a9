// Inputs of the heads on the host, and how results are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/stored.h"

namespace taopd {

// hidden and lm_head, rounded to the type on the device.
struct HeadMatrices {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0, hidden_size = 0, vocab_size = 0;
  std::vector<float> hidden_NH, lm_head_VH;

  void Round() {
    for (std::vector<float>* matrix : {&hidden_NH, &lm_head_VH}) {
      *matrix = testing::StoreAs(dtype, *matrix).Values();
    }
  }

  // Returns row n of hidden lm_head^T.
  std::vector<float> Logits(int64_t n) const {
    std::vector<float> logits(vocab_size);
    for (int64_t v = 0; v < vocab_size; ++v) {
      double sum = 0;
      for (int64_t h = 0; h < hidden_size; ++h) {
        sum +=
            static_cast<double>(hidden_NH[n * hidden_size + h]) * lm_head_VH[v * hidden_size + h];
      }
      logits[v] = static_cast<float>(sum);
    }
    return logits;
  }
};

inline HeadMatrices RandomMatrices(DataType dtype, int64_t num_rows, int64_t hidden_size,
                                   int64_t vocab_size, uint64_t seed) {
  HeadMatrices matrices{dtype, num_rows, hidden_size, vocab_size, {}, {}};
  matrices.hidden_NH = testing::Normal(dtype, num_rows * hidden_size, seed).Values();
  matrices.lm_head_VH =
      testing::Normal(dtype, vocab_size * hidden_size, seed + 1000, 0.7f).Values();
  return matrices;
}

// Returns the bytes of a matrix in the type on the device. Each row is followed by `padding`
// elements of NaN, which must not be read.
inline std::vector<uint8_t> Bytes(const std::vector<float>& matrix, int64_t columns,
                                  int64_t padding, DataType dtype) {
  std::vector<float> padded;
  for (auto row = matrix.begin(); row != matrix.end(); row += columns) {
    padded.insert(padded.end(), row, row + columns);
    padded.insert(padded.end(), padding, std::numeric_limits<float>::quiet_NaN());
  }
  return testing::StoreAs(dtype, padded).bytes;
}

// Compares each element relative to its own size, at least 1. NaNs and infinities must be in the
// same places.
inline void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                       double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << what << " [" << i << "] is " << actual[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], expected[i]) << what << " [" << i << "]";
    } else {
      const double size = std::max(1.0, static_cast<double>(std::fabs(expected[i])));
      EXPECT_NEAR(actual[i], expected[i], tolerance * size) << what << " [" << i << "]";
    }
  }
}

}  // namespace taopd
