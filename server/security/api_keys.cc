#include "server/security/api_keys.h"

#include <absl/strings/escaping.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <sstream>
#include <utility>

#include "common/io/file.h"
#include "common/wire/bearer.h"

namespace taopd {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kNameBytes = 8;

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys, std::string path)
    : path_(std::move(path)), fixed_([&] {
        std::vector<Digest> digests;
        for (const std::string& key : keys) digests.push_back(DigestOf(key));
        return digests;
      }()) {}

absl::Status ApiKeys::Reload() {
  if (path_.empty()) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path_, kMaxFileBytes));
  std::vector<Digest> digests;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (!IsBearerKey(line)) {
      return InvalidArgument(path_, ":", number, ": a key must be printable ASCII without spaces");
    }
    digests.push_back(DigestOf(line));
  }
  if (digests.empty()) return InvalidArgument(path_, ": holds no key");
  absl::MutexLock lock(&mutex_);
  file_digests_ = std::move(digests);
  return absl::OkStatus();
}

bool ApiKeys::Accepts(std::string_view authorization) const {
  if (!required()) return true;
  const Digest shown = DigestOf(BearerKeyOf(authorization));
  int num_equal = 0;
  const auto compare = [&](const std::vector<Digest>& digests) {
    for (const Digest& digest : digests) {
      num_equal += CRYPTO_memcmp(digest.data(), shown.data(), shown.size()) == 0;
    }
  };
  compare(fixed_);
  absl::MutexLock lock(&mutex_);
  compare(file_digests_);
  return num_equal > 0;
}

std::string ApiKeys::NameOf(std::string_view authorization) const {
  if (!required()) return "";
  const Digest digest = DigestOf(BearerKeyOf(authorization));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), kNameBytes));
}

}  // namespace taopd
