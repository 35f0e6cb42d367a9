// SHA-256 (FIPS 180-4), used to name content, not to protect secrets. OpenSSL computes the digests
// and uses the processor's SHA instructions if there are any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace taopd {

// Hashes bytes that arrive in parts. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);
  // Returns the digest of all bytes so far as 64 hexadecimal digits. No other call may follow.
  std::string HexDigest();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

std::string Sha256Hex(std::string_view text);
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);
// Returns the digest of each piece. Uses at most `max_threads` threads, this one included.
std::vector<std::string> Sha256OfAll(const std::vector<std::span<const std::byte>>& pieces,
                                     int max_threads);

}  // namespace taopd
