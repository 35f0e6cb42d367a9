#include "server/security/transport.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "common/base/check.h"

namespace taopd {
namespace {

int IntSize(size_t size) {
  return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Transport::Transport(int fd, SSL_CTX* context)
    : fd_(fd), ssl_(context == nullptr ? nullptr : SSL_new(context), &SSL_free) {
  if (context == nullptr) return;
  TAOPD_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_.get(), fd) == 1);
  SSL_set_accept_state(ssl_.get());
}

Transport::Status Transport::StatusOfTls(int result) const {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Status::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Status::kWantWrite;
    default:
      return Status::kClosed;
  }
}

Transport::Status Transport::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return Status::kOk;
  const Status status = StatusOfTls(result);
  is_broken_ = status == Status::kClosed;
  return status;
}

std::string_view Transport::chosen_protocol() const {
  const unsigned char* name = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

Transport::Result Transport::Read(char* buffer, size_t size) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int got = SSL_read(ssl_.get(), buffer, IntSize(size));
    if (got > 0) return {Status::kOk, static_cast<size_t>(got)};
    const Status status = StatusOfTls(got);
    if (status == Status::kClosed && SSL_get_shutdown(ssl_.get()) == 0) is_broken_ = true;
    return {status, 0};
  }
  const ssize_t got = ::recv(fd(), buffer, size, MSG_DONTWAIT);
  if (got > 0) return {Status::kOk, static_cast<size_t>(got)};
  return {got < 0 && WouldBlock() ? Status::kWantRead : Status::kClosed, 0};
}

Transport::Result Transport::Write(std::string_view bytes) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int sent = SSL_write(ssl_.get(), bytes.data(), IntSize(bytes.size()));
    if (sent > 0) return {Status::kOk, static_cast<size_t>(sent)};
    const Status status = StatusOfTls(sent);
    if (status == Status::kClosed) is_broken_ = true;
    return {status, 0};
  }
  const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) return {Status::kOk, static_cast<size_t>(sent)};
  return {sent < 0 && WouldBlock() ? Status::kWantWrite : Status::kClosed, 0};
}

void Transport::ShutdownWrite() {
  if (ssl_ != nullptr && !is_broken_ && SSL_is_init_finished(ssl_.get())) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
  }
  ::shutdown(fd(), SHUT_WR);
}

bool Transport::IsGone() const {
  pollfd entry = {fd(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace taopd
