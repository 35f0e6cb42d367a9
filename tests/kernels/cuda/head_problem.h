// Inputs of the heads on the host.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/stored.h"

namespace taopd {

// hidden and lm_head, rounded to the type on the device.
struct HeadMatrices {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0, hidden_size = 0, vocabulary_size = 0;
  std::vector<float> hidden_NH, lm_head_VH;

  void Round() {
    for (std::vector<float>* matrix : {&hidden_NH, &lm_head_VH}) {
      *matrix = testing::StoreAs(dtype, *matrix).Values();
    }
  }

  // Returns row n of hidden lm_head^T.
  std::vector<float> Logits(int64_t n) const {
    std::vector<float> logits(vocabulary_size);
    for (int64_t v = 0; v < vocabulary_size; ++v) {
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
                                   int64_t vocabulary_size, uint64_t seed) {
  HeadMatrices matrices{dtype, num_rows, hidden_size, vocabulary_size, {}, {}};
  matrices.hidden_NH = testing::Normal(dtype, num_rows * hidden_size, seed).Values();
  matrices.lm_head_VH =
      testing::Normal(dtype, vocabulary_size * hidden_size, seed + 1000, 0.7f).Values();
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

}  // namespace taopd
