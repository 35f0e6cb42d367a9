#include "common/dist/watch_token.h"

#include <absl/strings/escaping.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "common/base/check.h"

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
  char bytes[16];
  TAOPD_CHECK_EQ(getentropy(bytes, sizeof(bytes)), 0);
  return absl::BytesToHexString(std::string(bytes, sizeof(bytes)));
}

}  // namespace taopd
