// Reads and writes the bytes of one client's socket, plain or through TLS. It never blocks: a call
// that would wait returns the event for which it waits. Used by one thread at a time, except for
// IsGone.
//
// The process must ignore SIGPIPE, which OpenSSL cannot avoid.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/base/file_descriptor.h"

namespace taopd {

class Transport {
 public:
  // The maximum number of bytes that a TLS record carries (RFC 8446, section 5.1).
  static constexpr size_t kMaxTlsRecordBytes = 16 << 10;

  enum class Status { kOk, kWantRead, kWantWrite, kClosed };
  struct Result {
    Status status = Status::kOk;
    size_t num_bytes = 0;  // at least 1 for kOk
  };

  // Takes ownership of the socket, which must be nonblocking, and creates the server's side of TLS
  // with `context` unless that is null.
  Transport(int fd, SSL_CTX* context);

  int fd() const { return fd_.get(); }
  // Returns the protocol negotiated in the TLS handshake (ALPN), or an empty text if the client has
  // offered none. REQUIRES: `context` was not null.
  std::string_view chosen_protocol() const;
  // Continues the TLS handshake. Returns kOk when it is done. REQUIRES: `context` was not null.
  Status Handshake();
  // Reads some bytes. REQUIRES: with TLS, `size` is at least kMaxTlsRecordBytes. A smaller read
  // would leave decrypted bytes that no event of the socket announces.
  Result Read(char* buffer, size_t size);
  Result Write(std::string_view bytes);
  // Shuts down the sending side.
  void ShutdownWrite();
  // Returns whether the peer has shut down its sending side or is gone. Any thread may call it.
  bool IsGone() const;

 private:
  Status StatusOfTls(int result) const;

  const FileDescriptor fd_;
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  bool is_broken_ = false;  // after a fatal TLS error no alert may be sent
};

}  // namespace taopd
