// SHA-256 (FIPS 180-4): names of content, not protection of secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);
  std::string HexDigest();  // ends the object's life

 private:
  void Block(const std::byte* block);
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> buffer_;
  uint64_t num_bytes_ = 0;
};

std::string Sha256Hex(std::string_view text);
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

}  // namespace taopd
