// The server's certificate and key, and the authorities whose clients may connect, from PEM files
// that may be replaced while the server runs. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <memory>
#include <string>

#include "common/base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace taopd {

struct TlsPaths {
  std::string certificate;  // the server's certificate with its chain; "" for no TLS
  std::string key;
  // If it is not empty, clients must show a certificate of one of these authorities.
  std::string client_authorities;

  bool enabled() const { return !certificate.empty(); }
};

class TlsFiles {
 public:
  // The protocol inside TLS. A client that offers only other protocols is refused.
  enum class Protocol { kHttp11, kHttp2 };

  explicit TlsFiles(TlsPaths paths, Protocol protocol = Protocol::kHttp11)
      : paths_(std::move(paths)), protocol_(protocol) {}

  // Reads the files. Returns INVALID_ARGUMENT naming the file, with OpenSSL's reason, if one cannot
  // be read or the key does not match the certificate; the previous ones stay in use then.
  absl::Status Reload();
  // Reads the files if one of them has changed since the last attempt to read it.
  absl::Status ReloadIfChanged();

  const TlsPaths& paths() const { return paths_; }
  // Returns the context for new connections: TLS 1.2 or later. Null before the first Reload.
  std::shared_ptr<ssl_ctx_st> context() const {
    absl::MutexLock lock(&mutex_);
    return context_;
  }

 private:
  // Returns a text that identifies the files to which the paths currently refer.
  std::string Stamp() const;

  const TlsPaths paths_;
  const Protocol protocol_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
