#include "common/io/sha256.h"

#include <absl/strings/escaping.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>
#include <thread>

#include "common/base/check.h"
#include "common/io/file.h"

namespace taopd {

// OpenSSL's functions fail only if memory runs out or if they are called in the wrong order.

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  TAOPD_CHECK(context_ != nullptr);
  TAOPD_CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  TAOPD_CHECK_EQ(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), 1);
}

void Sha256::Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }

std::string Sha256::HexDigest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int num_bytes = 0;
  TAOPD_CHECK_EQ(EVP_DigestFinal_ex(context_.get(), digest.data(), &num_bytes), 1);
  return absl::BytesToHexString(std::string(digest.begin(), digest.begin() + num_bytes));
}

std::string Sha256Hex(std::string_view text) {
  Sha256 hash;
  hash.Update(text);
  return hash.HexDigest();
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  Sha256 hash;
  TAOPD_RETURN_IF_ERROR(ReadInPieces(path, [&hash](std::string_view bytes) {
    hash.Update(bytes);
    return absl::OkStatus();
  }));
  return hash.HexDigest();
}

std::vector<std::string> Sha256OfAll(const std::vector<std::span<const std::byte>>& pieces,
                                     int max_threads) {
  std::vector<std::string> digests(pieces.size());
  std::atomic<size_t> next{0};
  const auto hash_some = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      Sha256 hash;
      hash.Update(pieces[i]);
      digests[i] = hash.HexDigest();
    }
  };
  const size_t num_threads = std::min(pieces.size(), static_cast<size_t>(std::max(1, max_threads)));
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < num_threads; ++i) others.emplace_back(hash_some);
  } catch (const std::system_error&) {
    // The system has no more threads, so the existing ones do the work.
  }
  hash_some();
  for (std::thread& thread : others) thread.join();
  return digests;
}

}  // namespace taopd
