#include "server/http/connection.h"

#include <absl/time/clock.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace taopd {
namespace {

constexpr int kBacklog = 1024;
constexpr int kMaxRequestsPerConnection = 10000;
constexpr absl::Duration kMinIdleTime = absl::Seconds(1);
constexpr absl::Duration kPollSlice = absl::Milliseconds(100);
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr size_t kLingerBytes = 64 << 20;

thread_local Connection* current_connection = nullptr;

// True when `events` came; false at the deadline or on a hang-up without data.
bool PollUntil(socket_t socket, short events, absl::Time deadline) {
  for (;;) {
    const int64_t left_ms =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 60'000);
    pollfd entry = {socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left_ms));
    if (ready > 0) return true;  // also on an error, which the next call reports
    if (ready < 0 && errno != EINTR) return false;
    if (absl::Now() >= deadline) return false;
  }
}

void AddressText(int (*get)(int, sockaddr*, socklen_t*), socket_t socket, std::string* ip,
                 int* port) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    *port = ntohs(v4->sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    // An IPv4 client has the same address whatever family the server listens on.
    const uint8_t* bytes = v6->sin6_addr.s6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
      inet_ntop(AF_INET, bytes + 12, text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, bytes, text, sizeof(text));
    }
    *port = ntohs(v6->sin6_port);
  }
  *ip = text;
}

// cpp-httplib's pool, with a count of the connections that no thread has taken up yet.
class CountingThreadPool final : public httplib::TaskQueue {
 public:
  CountingThreadPool(int num_threads, std::atomic<int>* num_waiting)
      : pool_(static_cast<size_t>(num_threads)), num_waiting_(num_waiting) {}
  void enqueue(std::function<void()> task) override {
    ++*num_waiting_;
    pool_.enqueue([this, task = std::move(task)] {
      --*num_waiting_;
      task();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  httplib::ThreadPool pool_;
  std::atomic<int>* const num_waiting_;
};

}  // namespace

Connection* CurrentConnection() { return current_connection; }

bool Connection::WaitForRequest() {
  if (buffer_begin_ < buffer_end_) return true;
  const absl::Time begun_at = absl::Now();
  const absl::Time deadline = begun_at + limits_.idle_timeout;
  while (!end_idle_(absl::Now() - begun_at) && absl::Now() < deadline) {
    if (PollUntil(socket_, POLLIN, std::min(deadline, absl::Now() + kPollSlice)))
      return Fill(deadline);
  }
  return false;
}

void Connection::BeginRequest() {
  request_bytes_ = 0;
  line_feeds_ = 0;
  head_ended_ = false;
  begun_at_ = absl::Now();
}

bool Connection::PeerClosed() const {
  char byte;
  const ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Connection::LingeringClose() {
  ::shutdown(socket_, SHUT_WR);
  const absl::Time deadline = absl::Now() + kLingerTime;
  size_t discarded = 0;
  while (discarded < kLingerBytes && PollUntil(socket_, POLLIN, deadline)) {
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    discarded += static_cast<size_t>(got);
  }
}

bool Connection::Fill(absl::Time deadline) {
  if (!PollUntil(socket_, POLLIN, deadline)) return false;
  const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
  if (got <= 0) return false;
  buffer_begin_ = 0;
  buffer_end_ = static_cast<size_t>(got);
  return true;
}

void Connection::CountHead(char c) {
  if (c == '\n') {
    if (++line_feeds_ == 2) head_ended_ = true;
  } else if (c != '\r') {
    line_feeds_ = 0;
  }
}

bool Connection::is_readable() const {
  return buffer_begin_ < buffer_end_ ||
         PollUntil(socket_, POLLIN, begun_at_ + limits_.request_timeout);
}

bool Connection::is_writable() const {
  return PollUntil(socket_, POLLOUT, absl::Now() + limits_.write_timeout);
}

ssize_t Connection::read(char* ptr, size_t size) {
  const size_t limit =
      head_ended_ ? limits_.max_head_bytes + limits_.max_body_bytes : limits_.max_head_bytes;
  if (request_bytes_ >= limit) {
    CloseAfterResponse();
    return -1;
  }
  if (buffer_begin_ == buffer_end_) {
    const absl::Duration timeout = head_ended_ ? limits_.request_timeout : limits_.head_timeout;
    if (!Fill(begun_at_ + timeout)) {
      CloseAfterResponse();
      return -1;
    }
  }
  const size_t count = std::min({size, buffer_end_ - buffer_begin_, limit - request_bytes_});
  std::memcpy(ptr, buffer_.data() + buffer_begin_, count);
  for (size_t i = 0; i < count && !head_ended_; ++i) CountHead(ptr[i]);
  buffer_begin_ += count;
  request_bytes_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* ptr, size_t size) {
  size_t sent = 0;
  while (sent < size) {
    if (!PollUntil(socket_, POLLOUT, absl::Now() + limits_.write_timeout)) return -1;
    const ssize_t count = ::send(socket_, ptr + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) continue;
      return -1;
    }
    sent += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(size);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  AddressText(&::getpeername, socket_, &ip, &port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  AddressText(&::getsockname, socket_, &ip, &port);
}

BoundedServer::BoundedServer(const ConnectionLimits& limits, int num_threads) : limits_(limits) {
  new_task_queue = [this, num_threads] {
    return new CountingThreadPool(num_threads, &num_waiting_connections_);
  };
  set_payload_max_length(limits.max_body_bytes);
  set_tcp_nodelay(true);
  // Not the default, which sets SO_REUSEPORT: a second server on the port must fail.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
}

int BoundedServer::Bind(const std::string& host, int port) {
  const int bound = port == 0 ? bind_to_any_port(host) : (bind_to_port(host, port) ? port : -1);
  // The library's own backlog is 5; listening again on the same socket replaces it.
  if (bound > 0 && ::listen(svr_sock_, kBacklog) != 0) return -1;
  return bound;
}

bool BoundedServer::Serve() {
  listen_after_bind();
  serve_ended_ = true;
  return stopping_;
}

void BoundedServer::Stop(absl::Time deadline) {
  tracker_.WaitUntilIdle(deadline);
  stopping_ = true;
  // stop() does nothing before the loop of Serve has begun.
  while (!is_running() && !serve_ended_) absl::SleepFor(absl::Milliseconds(1));
  stop();
  absl::MutexLock lock(&mutex_);
  for (const socket_t socket : sockets_) ::shutdown(socket, SHUT_RDWR);
}

void BoundedServer::ServeConnection(Connection* connection) {
  for (int left = kMaxRequestsPerConnection; left > 0; --left) {
    if (!connection->WaitForRequest()) return;
    connection->BeginRequest();
    tracker_.Begin();
    const bool last = left == 1 || stopping_;
    bool client_closes = false;
    const bool ok = process_request(*connection, last, client_closes, nullptr);
    tracker_.End();
    connection->ReleaseMemory();
    if (connection->close_after_response()) return connection->LingeringClose();
    if (!ok || last || client_closes || connection->end_after_response()) return;
  }
}

bool BoundedServer::process_and_close_socket(socket_t sock) {
  {
    absl::MutexLock lock(&mutex_);
    sockets_.insert(sock);
    if (stopping_) ::shutdown(sock, SHUT_RDWR);
  }
  // An idle connection must not hold a thread for long that another one waits for. It is not cut at
  // once: a client that sends its next request right away would lose it.
  Connection connection(sock, limits_, [this](absl::Duration idle) {
    return stopping_ || (has_waiting_connections() && idle >= kMinIdleTime);
  });
  current_connection = &connection;
  ServeConnection(&connection);
  current_connection = nullptr;
  ::shutdown(sock, SHUT_RDWR);
  absl::MutexLock lock(&mutex_);
  sockets_.erase(sock);
  ::close(sock);
  return true;
}

}  // namespace taopd
