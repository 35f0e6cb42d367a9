// The keys that clients must show: "Authorization: Bearer KEY" as a header over HTTP or as metadata
// over gRPC. Only the keys' SHA-256 digests are kept; neither keys nor digests are logged.
// Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class ApiKeys {
 public:
  // Accepts the given `keys` and those in the file `path` ("" for none), which has one key per line
  // and which Reload reads. Empty lines and lines that begin with # are skipped.
  ApiKeys(const std::vector<std::string>& keys, std::string path);

  // Reads the file. Returns the error of the file, or INVALID_ARGUMENT if it has no key or a key
  // with spaces or characters that are not printable ASCII; the keys stay unchanged then. The
  // message does not contain a key.
  absl::Status Reload();

  // Returns whether a key is required at all.
  bool required() const { return !path_.empty() || !fixed_.empty(); }
  // Returns whether the value of an Authorization header contains one of the keys, or none is
  // required. The time does not depend on how close a wrong key is.
  bool Accepts(std::string_view authorization) const;
  // Returns a short name for the key in the header, always the same for the same key, or an empty
  // name if none is required. It is the beginning of the key's digest, so it does not reveal the
  // key. REQUIRES: Accepts.
  std::string NameOf(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest DigestOf(std::string_view key);

  const std::string path_;
  const std::vector<Digest> fixed_;
  mutable absl::Mutex mutex_;
  std::vector<Digest> file_digests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
