// The header of a safetensors file: parsing and every check that needs no tensor bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The reference implementation's limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // relative to the end of the header
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// `text` is the JSON; data_bytes is what follows it in the file. DATA_LOSS when a rule is broken;
// `source` names the file in messages.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text,
                                                         int64_t data_bytes,
                                                         const std::string& source);

// Bytes of a tensor; INVALID_ARGUMENT for a negative dimension, an unknown dtype or a product that
// overflows.
absl::StatusOr<int64_t> SafetensorsTensorBytes(const std::string& dtype,
                                               const std::vector<int64_t>& shape);

}  // namespace taopd
