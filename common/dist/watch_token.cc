#include "common/dist/watch_token.h"

#include <absl/strings/escaping.h>
#include <sys/random.h>

#include "common/base/check.h"
#include "common/io/sha256.h"

namespace taopd {
namespace {

constexpr size_t kBlockBytes = 64;  // block size of SHA-256

std::string Xored(std::string key, char pad) {
  for (char& c : key) c = static_cast<char>(c ^ pad);
  return key;
}

}  // namespace

std::string WatchToken(const std::string& secret, const std::string& published) {
  std::string key =
      secret.size() > kBlockBytes ? absl::HexStringToBytes(Sha256Hex(secret)) : secret;
  key.resize(kBlockBytes, '\0');
  const std::string inner = absl::HexStringToBytes(Sha256Hex(Xored(key, 0x36) + published));
  return Sha256Hex(Xored(key, 0x5c) + inner);
}

std::string NewWatchNonce() {
  char bytes[16];
  TAOPD_CHECK_EQ(getentropy(bytes, sizeof(bytes)), 0);
  return absl::BytesToHexString(std::string(bytes, sizeof(bytes)));
}

}  // namespace taopd
