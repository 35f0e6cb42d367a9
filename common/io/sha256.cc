#include "common/io/sha256.h"

#include <absl/strings/escaping.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/io/atomic_file.h"

namespace taopd {

// OpenSSL's functions fail only if memory runs out or if they are called in the wrong order.

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  TAOPD_CHECK(context_ != nullptr);
  TAOPD_CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
}

void Sha256::FreeContext::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

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
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError("open", path, errno);
  Sha256 hash;
  std::string buffer(size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t num_read = ::read(file.get(), buffer.data(), buffer.size());
    if (num_read == 0) return hash.HexDigest();
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return FileError("read", path, errno);
    hash.Update(std::string_view(buffer).substr(0, static_cast<size_t>(num_read)));
  }
}

}  // namespace taopd
