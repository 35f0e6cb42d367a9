#include "common/dist/watch_token.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base/check.h"
#include "common/base/random.h"

namespace taopd {

std::string WatchToken(const std::string& secret, const std::string& published) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  TAOPD_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(published.data()), published.size(),
                   digest, &size) != nullptr);
  return absl::BytesToHexString(std::string(digest, digest + size));
}

std::string NewWatchNonce() {
  return absl::StrCat(absl::Hex(FreshBits(), absl::kZeroPad16),
                      absl::Hex(FreshBits(), absl::kZeroPad16));
}

}  // namespace taopd
