// Numbers in a storage type, as the kernels take them.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "taopd/base/data_type.h"

namespace taopd::testing {

struct Stored {
  DataType type = DataType::kFloat32;
  std::vector<uint8_t> bytes;

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / SizeOf(type); }
  const void* In() const { return bytes.data(); }
  void* Out() { return bytes.data(); }
  std::vector<float> Values() const {
    std::vector<float> values(size());
    for (int64_t i = 0; i < size(); ++i) {
      if (type == DataType::kFloat32) {
        std::memcpy(&values[i], &bytes[4 * i], 4);
      } else {
        uint32_t bits = 0;
        std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, &bytes[2 * i], 2);
        std::memcpy(&values[i], &bits, 4);
      }
    }
    return values;
  }
};

inline Stored Empty(DataType type, int64_t size) {
  return {type, std::vector<uint8_t>(size * SizeOf(type))};
}

// Truncates numbers to bfloat16 where that is the type.
inline Stored StoreAs(DataType type, const std::vector<float>& values) {
  Stored stored = Empty(type, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DataType::kFloat32) {
      std::memcpy(&stored.bytes[4 * i], &values[i], 4);
    } else {
      std::memcpy(&stored.bytes[2 * i], reinterpret_cast<const uint8_t*>(&values[i]) + 2, 2);
    }
  }
  return stored;
}

inline Stored Normal(DataType type, int64_t size, uint64_t seed, float scale = 1, float mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return StoreAs(type, values);
}

}  // namespace taopd::testing
