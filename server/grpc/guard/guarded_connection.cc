#include "server/grpc/guard/guarded_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>

namespace taopd {
namespace {

constexpr int kMaxRounds = 16;  // rounds of one connection before others get their turns
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);

// Removes the bytes that were sent. The memory is freed when nothing is left, since most
// connections are idle.
void Drop(std::string* bytes, size_t num_sent) {
  bytes->erase(0, num_sent);
  if (bytes->empty()) bytes->shrink_to_fit();
}

}  // namespace

void GuardedConnection::Run(absl::Time now) {
  wants_run_ = false;
  if (state_ == State::kHandshake) Handshake();
  for (int round = 0; round < kMaxRounds; ++round) {
    const bool read = PassToServer(now);
    const bool written = PassToClient(now);
    if (!read && !written) return;
  }
  wants_run_ = true;  // no event announces the end of a connection whose bytes have all been sent
}

void GuardedConnection::Handshake() {
  const Transport::Status status = transport_.Handshake();
  handshake_writes_ = status == Transport::Status::kWantWrite;
  if (status == Transport::Status::kClosed) Close();
  if (status != Transport::Status::kOk) return;
  state_ = State::kOpen;
  if (transport_.chosen_protocol() != "h2") Close();
}

bool GuardedConnection::PassToServer(absl::Time now) {
  if (state_ == State::kHandshake || state_ == State::kEnding || is_closed()) return false;
  if (!FlushToServer()) return false;
  const Transport::Result got = transport_.Read(buffer_->data(), buffer_->size());
  if (got.status == Transport::Status::kClosed) Close();
  if (got.status != Transport::Status::kOk) return false;
  if (state_ == State::kLingering) return true;
  const std::string_view bytes(buffer_->data(), got.num_bytes);
  if (const absl::Status checked = guard_->FromClient(bytes, now, &to_server_); !checked.ok()) {
    End(checked, now);
    return false;
  }
  if (server_fd() < 0 && guard_->has_preface()) {
    server_fd_ = FileDescriptor(connect_());
    if (server_fd() < 0) Close();
  }
  return FlushToServer();
}

bool GuardedConnection::FlushToServer() {
  if (server_fd() < 0) return !is_closed();
  while (!to_server_.empty()) {
    const ssize_t sent =
        ::send(server_fd(), to_server_.data(), to_server_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // If gRPC has closed its end, its earlier bytes must still be read.
    if (sent < 0 && errno != EAGAIN && errno != EINTR) to_server_.clear();
    if (sent <= 0) return false;
    Drop(&to_server_, static_cast<size_t>(sent));
  }
  return true;
}

bool GuardedConnection::PassToClient(absl::Time now) {
  if (state_ == State::kHandshake || state_ == State::kLingering || is_closed()) return false;
  if (!FlushToClient()) return false;
  if (state_ == State::kEnding) {
    transport_.ShutdownWrite();
    state_ = State::kLingering;
    ends_at_ = now + kLingerTimeout;
    return true;
  }
  if (server_fd() < 0) return false;
  const ssize_t got = ::recv(server_fd(), buffer_->data(), buffer_->size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    BeginEnding(now);
    return true;
  }
  const std::string_view bytes(buffer_->data(), static_cast<size_t>(got));
  if (const absl::Status checked = guard_->FromServer(bytes, now, &to_client_); !checked.ok()) {
    End(checked, now);
    return true;
  }
  return FlushToClient();
}

bool GuardedConnection::FlushToClient() {
  while (!to_client_.empty()) {
    const Transport::Result sent = transport_.Write(to_client_);
    if (sent.status == Transport::Status::kClosed) Close();
    if (sent.status != Transport::Status::kOk) return false;
    Drop(&to_client_, sent.num_bytes);
  }
  return true;
}

void GuardedConnection::End(const absl::Status& why, absl::Time now) {
  on_refusal_(why);
  to_client_ += guard_->GoAway(why);
  BeginEnding(now);
}

void GuardedConnection::BeginEnding(absl::Time now) {
  CloseServer();
  state_ = State::kEnding;
  ends_at_ = now + kLingerTimeout;
}

void GuardedConnection::CloseServer() {
  server_fd_.Close();
  guard_.reset();
  to_server_.clear();
}

void GuardedConnection::Close() {
  CloseServer();
  state_ = State::kClosed;
}

void GuardedConnection::CheckDeadlines(absl::Time now) {
  if (now > ends_at_) Close();
  if (!guard_.has_value()) return;
  if (const absl::Status late = guard_->CheckDeadlines(now, &to_server_); !late.ok()) {
    End(late, now);
  }
}

uint32_t GuardedConnection::client_waits_for() const {
  if (is_closed()) return 0;
  if (state_ == State::kHandshake) return handshake_writes_ ? EPOLLOUT : EPOLLIN;
  const bool reads = state_ == State::kLingering || (state_ == State::kOpen && to_server_.empty());
  // Before gRPC knows the connection, the preface is collected.
  const bool collects = state_ == State::kOpen && server_fd() < 0;
  return (reads || collects ? EPOLLIN : 0u) | (to_client_.empty() ? 0u : EPOLLOUT);
}

uint32_t GuardedConnection::server_waits_for() const {
  if (server_fd() < 0) return 0;
  return (to_client_.empty() ? EPOLLIN : 0u) | (to_server_.empty() ? 0u : EPOLLOUT);
}

}  // namespace taopd
