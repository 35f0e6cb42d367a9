// The header of a safetensors file: its parser, with every check that needs no tensor bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// A file starts with the header's length, a little-endian u64.
inline constexpr int64_t kSafetensorsLengthBytes = 8;
// The reference implementation's limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// A tensor's bytes are [begin, end), counted from the end of the header.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// Parses the JSON text of a header. `data_bytes` is the number of bytes that follow it in the file.
// Returns DATA_LOSS if a rule of the format is broken; `source` names the file in messages.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text,
                                                         int64_t data_bytes,
                                                         const std::string& source);

// Returns the size of a tensor. Returns INVALID_ARGUMENT for a negative dimension, an unknown dtype
// or a product that overflows.
absl::StatusOr<int64_t> SafetensorsTensorBytes(const std::string& dtype,
                                               const std::vector<int64_t>& shape);

}  // namespace taopd
