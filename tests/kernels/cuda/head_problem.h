// Inputs of the heads on the host, and the results of the CPU's row kernels for them.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "taopd/base/data_type.h"

namespace taopd {

inline uint16_t Bfloat16Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0x7fff;
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

inline float FromBfloat16Bits(uint16_t narrow) {
  const uint32_t bits = static_cast<uint32_t>(narrow) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// hidden and lm_head, rounded to the type on the device.
struct HeadMatrices {
  DataType dtype = DataType::kFloat32;
  int64_t num_rows = 0, hidden_size = 0, vocabulary_size = 0;
  std::vector<float> hidden_NH, lm_head_VH;

  void Round() {
    if (dtype == DataType::kFloat32) return;
    for (std::vector<float>* matrix : {&hidden_NH, &lm_head_VH}) {
      for (float& value : *matrix) value = FromBfloat16Bits(Bfloat16Bits(value));
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
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  HeadMatrices matrices{dtype, num_rows, hidden_size, vocabulary_size, {}, {}};
  matrices.hidden_NH.resize(num_rows * hidden_size);
  matrices.lm_head_VH.resize(vocabulary_size * hidden_size);
  for (float& value : matrices.hidden_NH) value = normal(random);
  for (float& value : matrices.lm_head_VH) value = 0.7f * normal(random);
  matrices.Round();
  return matrices;
}

// Returns the bytes of a matrix in the type on the device. Each row is followed by `padding`
// elements of NaN, which must not be read.
inline std::vector<char> Bytes(const std::vector<float>& matrix, int64_t columns, int64_t padding,
                               DataType dtype) {
  std::vector<char> bytes;
  const auto append = [&](float value) {
    const uint16_t narrow = Bfloat16Bits(value);
    const char* from = dtype == DataType::kFloat32 ? reinterpret_cast<const char*>(&value)
                                                   : reinterpret_cast<const char*>(&narrow);
    bytes.insert(bytes.end(), from, from + SizeOf(dtype));
  };
  for (size_t i = 0; i < matrix.size(); ++i) {
    append(matrix[i]);
    if ((i + 1) % columns == 0) {
      for (int64_t j = 0; j < padding; ++j) append(std::numeric_limits<float>::quiet_NaN());
    }
  }
  return bytes;
}

inline std::vector<float> FromBytes(const std::vector<char>& bytes, DataType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DataType::kFloat32) {
      std::memcpy(&values[i], &bytes[i * 4], 4);
    } else {
      uint16_t narrow = 0;
      std::memcpy(&narrow, &bytes[i * 2], 2);
      values[i] = FromBfloat16Bits(narrow);
    }
  }
  return values;
}

}  // namespace taopd
