// The keys that clients must show: "Authorization: Bearer KEY" over HTTP, the same as metadata over
// gRPC. Only the keys' SHA-256 digests are kept, and neither is ever logged. Thread-safe.
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
  // `keys` as they were given, and a file with one key a line ("" for none), which Reload reads
  // again. Empty lines and lines that begin with # are skipped.
  ApiKeys(const std::vector<std::string>& keys, std::string path);

  // Reads the file. Returns the error of the file, or INVALID_ARGUMENT if it holds no key, or a key
  // that holds spaces or is empty; the keys then stay as they were. The message names no key.
  absl::Status Reload();

  // Whether a key is asked for at all.
  bool required() const { return !path_.empty() || !fixed_.empty(); }
  // Whether the value of an Authorization header shows one of the keys, or none is asked for. The
  // time does not depend on which key comes close.
  bool Accepts(std::string_view authorization) const;
  // A short name for the key that the header shows, the same for the same key; empty if none is
  // asked for. It is the begin of the key's digest, so that it says nothing about the key.
  // REQUIRES: Accepts.
  std::string NameOf(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest DigestOf(std::string_view key);

  const std::string path_;
  const std::vector<Digest> fixed_;
  mutable absl::Mutex mutex_;
  std::vector<Digest> of_file_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
