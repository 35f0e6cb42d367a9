// The bytes of one client's socket, plain or through TLS. It never blocks: what would wait says
// what it waits for. Used by one thread at a time, except for IsGone.
//
// The process must ignore SIGPIPE, which OpenSSL cannot avoid.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string_view>

namespace taopd {

class Transport {
 public:
  enum class Status { kOk, kWantRead, kWantWrite, kClosed };
  struct Result {
    Status status = Status::kOk;
    size_t num_bytes = 0;  // at least 1 for kOk
  };

  // Owns the socket, which must not block, and makes the server's side of TLS with `context`
  // unless that is null.
  Transport(int fd, SSL_CTX* context);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return fd_; }
  bool is_secure() const { return ssl_ != nullptr; }
  // What client and server have agreed on in TLS's handshake (ALPN); empty if the client has
  // offered nothing. REQUIRES: is_secure().
  std::string_view chosen_protocol() const;
  // Goes on with TLS's handshake; kOk when it is done. REQUIRES: is_secure().
  Status Handshake();
  Result Read(char* buffer, size_t size);
  Result Write(std::string_view bytes);
  // Whether Read has bytes without the socket being readable.
  bool has_pending() const { return ssl_ != nullptr && SSL_pending(ssl_.get()) > 0; }
  // Ends the sending side.
  void ShutdownWrite();
  // Whether the peer has ended its sending side, or is gone. Any thread may call.
  bool IsGone() const;

 private:
  Status StatusOfTls(int result) const;

  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  const int fd_;
  const std::unique_ptr<SSL, Free> ssl_;
  bool is_broken_ = false;  // after a fatal error of TLS no alert may be sent
};

}  // namespace taopd
