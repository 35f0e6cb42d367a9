#include "server/app/listener_watch.h"

#include <absl/time/clock.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/file_descriptor.h"
#include "server/grpc/guard/http2_frames.h"

namespace taopd {
namespace {

bool WaitFor(int fd, short events, absl::Time deadline) {
  for (;;) {
    const int64_t left_ms =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 60'000);
    pollfd entry = {fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left_ms));
    if (ready > 0) return true;
    if ((ready < 0 && errno != EINTR) || absl::Now() >= deadline) return false;
  }
}

absl::Status ExchangeHello(const addrinfo& address, const std::string& hello, absl::Time deadline) {
  const FileDescriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return Unavailable("no socket: ", std::strerror(errno));
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS)
    return Unavailable("cannot connect: ", std::strerror(errno));
  if (!WaitFor(socket.get(), POLLOUT, deadline)) return Unavailable("does not accept connections");
  if (::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    // A connection that was accepted and closed immediately is an answer. Any other error says why
    // there is no connection.
    const int error = errno;
    if (error == EPIPE || error == ECONNRESET) return absl::OkStatus();
    return Unavailable("cannot connect: ", std::strerror(error));
  }
  if (!WaitFor(socket.get(), POLLIN, deadline)) return Unavailable("does not answer");
  return absl::OkStatus();
}

std::string LoopbackOf(const std::string& host) {
  if (host == "0.0.0.0" || host.empty()) return "127.0.0.1";
  if (host == "::" || host == "[::]") return "::1";
  if (host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

std::string Http2Hello() {
  return std::string(kClientPreface) + MakeFrame(FrameType::kSettings, 0, 0);
}

absl::Status ProbeListener(const WatchedListener& listener, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(LoopbackOf(listener.host).c_str(),
                                  std::to_string(listener.port).c_str(), &hints, &found);
  if (error != 0) return Unavailable("cannot resolve ", listener.host, ": ", ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  // A name such as localhost may have addresses of both families; the server listens on one.
  absl::Status answered;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    answered = ExchangeHello(*address, listener.hello, deadline);
    if (answered.ok()) break;
  }
  return answered;
}

ListenerWatch::ListenerWatch(std::vector<WatchedListener> listeners, const Options& options,
                             std::function<void(const absl::Status&)> report)
    : listeners_(std::move(listeners)),
      options_(options),
      report_(std::move(report)),
      thread_([this] { Loop(); }) {}

ListenerWatch::~ListenerWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status ListenerWatch::ProbeAll(std::vector<int>* num_failures) const {
  absl::Status verdict;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    const absl::Status probe = ProbeListener(listeners_[i], options_.timeout);
    int& failures = (*num_failures)[i];
    failures = probe.ok() ? 0 : failures + 1;
    if (failures < options_.num_failures || !verdict.ok()) continue;
    // Without the number of failures, so that the verdict does not change with each of them.
    verdict = Unavailable("the ", listeners_[i].name, " listener has not answered ",
                          options_.num_failures, " times in a row: ", probe.message());
  }
  return verdict;
}

void ListenerWatch::Loop() {
  std::vector<int> num_failures(listeners_.size(), 0);
  absl::Status last;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.interval);
      if (stopping_) return;
    }
    const absl::Status verdict = ProbeAll(&num_failures);
    if (verdict == last) continue;
    last = verdict;
    report_(verdict);
  }
}

}  // namespace taopd
