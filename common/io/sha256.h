// SHA-256 (FIPS 180-4), used to name content, not to protect secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// Hashes bytes that arrive in parts. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);
  // The digest of all bytes given so far, as 64 hexadecimal digits. No other call may follow.
  std::string HexDigest();

 private:
  void Block(const std::byte* block);
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> buffer_;
  uint64_t num_bytes_ = 0;
};

std::string Sha256Hex(std::string_view text);
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

}  // namespace taopd
