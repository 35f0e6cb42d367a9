#include "server/grpc/guard/grpc_guard.h"

#include <absl/time/clock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/net/descriptors.h"

namespace taopd {
namespace {

// Connection N has the ids 2 N and, for gRPC's side, 2 N + 1.
constexpr uint64_t kListenerId = 1;
constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr int kPauseMs = 50;
constexpr int kMaxAccepted = 64;  // connections accepted in one turn
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);

// Gives the socket a unique name that ends with the address.
bool BindAddress(int fd, const std::string& address) {
  static std::atomic<uint64_t> next{1};
  const std::string name = Concat("taopd/", ::getpid(), "-", next++, "/", address);
  sockaddr_un bound{};
  bound.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(bound.sun_path)) return false;
  std::memcpy(bound.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&bound), size) == 0;
}

}  // namespace

GrpcGuard::GrpcGuard(Listener listener, std::unique_ptr<Connections> connections,
                     const Options& options)
    : listener_(std::move(listener)), acceptor_(std::move(connections)), options_(options) {
  TAOPD_CHECK(poller_.is_open());
  thread_ = std::thread([this] { Loop(); });
}

GrpcGuard::~GrpcGuard() {
  StopAccepting();
  end_requested_ = true;
  poller_.Wake();
  thread_.join();
}

void GrpcGuard::StopAccepting() {
  stop_requested_ = true;
  poller_.Wake();
  stopped_accepting_.WaitForNotification();
}

void GrpcGuard::Loop() {
  absl::Time accepts_again_at = absl::InfinitePast();
  absl::Time ends_at = absl::InfiniteFuture();
  uint32_t listener_watched = 0;
  for (;;) {
    absl::Time now = absl::Now();
    int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(kTick));
    if (!ready_.empty()) timeout_ms = 0;
    // The listener stays ready while nothing can be accepted. Without a pause, this thread would do
    // nothing else.
    if (now < accepts_again_at) timeout_ms = std::min(timeout_ms, kPauseMs);
    poller_.Watch(listener_.fd(), kListenerId, now < accepts_again_at ? 0u : EPOLLIN,
                  &listener_watched);
    const std::vector<uint64_t>& events = poller_.Wait(timeout_ms);
    now = absl::Now();
    for (const uint64_t id : std::exchange(ready_, {})) RunConnection(id, now);
    for (const uint64_t id : events) {
      if (id != kListenerId) {
        RunConnection(id / 2, now);
      } else if (!AcceptAll(now)) {
        accepts_again_at = now + absl::Milliseconds(kPauseMs);
      }
    }
    if (now >= next_tick_) Tick(now);
    if (stop_requested_ && !stopped_accepting_.HasBeenNotified()) DoStopAccepting();
    if (!end_requested_) continue;
    ends_at = std::min(ends_at, now + kFlushTimeout);
    if (is_flushed() || now >= ends_at) return connections_.clear();
  }
}

bool GrpcGuard::AcceptAll(absl::Time now) {
  // A flood of connections must not keep the others waiting.
  for (int i = 0; i < kMaxAccepted; ++i) {
    AcceptedSocket socket;
    switch (listener_.Accept(&socket)) {
      case Listener::Result::kAccepted:
        Add(socket, now);
        break;
      case Listener::Result::kNone:
        return true;
      case Listener::Result::kNoDescriptors:
        return false;
      case Listener::Result::kDead:
        listener_.Close();
        options_.on_failure();
        return true;
    }
  }
  return true;
}

void GrpcGuard::Add(const AcceptedSocket& socket, absl::Time now) {
  const auto tls = options_.tls == nullptr ? nullptr : options_.tls->context();
  const uint64_t id = next_id_++;
  const std::string client_name =
      options_.proxies->Trusts(socket.address) ? Concat("connection ", id) : socket.subscriber;
  Client& client = clients_[client_name];
  if (IsScarce(socket.fd, DescriptorsLeftToHttp()) || connections_.size() >= kMaxConnections ||
      client.num_connections >= kMaxConnectionsPerClient) {
    ::close(socket.fd);
    return;
  }
  ++client.num_connections;
  const auto on_refusal = [this, address = socket.address](const absl::Status& why) {
    options_.on_refusal(address, why);
  };
  Entry& entry = connections_[id];
  entry.client = client_name;
  entry.connection = std::make_unique<GuardedConnection>(
      socket.fd, tls.get(),
      FrameGuard(options_.limits, MemoryAccount(options_.budget, client_name), &client.resets,
                 on_refusal, now),
      [this, address = socket.address] { return Connect(address); }, on_refusal, &buffer_);
  RunConnection(id, now);
}

int GrpcGuard::Connect(const std::string& address) {
  std::array<int, 2> pair;
  if (acceptor_ == nullptr ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return -1;
  }
  if (IsScarce(pair[1], DescriptorsLeftToHttp()) || !BindAddress(pair[0], address)) {
    for (const int fd : pair) ::close(fd);
    return -1;
  }
  Connections::NewConnectionParameters connection;
  connection.fd = pair[1];  // gRPC closes it
  acceptor_->HandleNewConnection(&connection);
  return pair[0];
}

void GrpcGuard::RunConnection(uint64_t id, absl::Time now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // closed by an event before this one
  found->second.connection->Run(now);
  Update(id);
}

void GrpcGuard::Update(uint64_t id) {
  Entry& entry = connections_.at(id);
  GuardedConnection& connection = *entry.connection;
  if (connection.is_closed()) {
    --clients_[entry.client].num_connections;
    connections_.erase(id);  // the kernel takes closed sockets out of epoll
    return;
  }
  poller_.Watch(connection.client_fd(), 2 * id, connection.client_waits_for(),
                &entry.client_watched);
  if (connection.server_fd() < 0) entry.server_watched = 0;
  poller_.Watch(connection.server_fd(), 2 * id + 1, connection.server_waits_for(),
                &entry.server_watched);
  if (connection.wants_run()) ready_.push_back(id);
}

void GrpcGuard::ForEach(const std::function<void(GuardedConnection& connection)>& act) {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto current = next++;  // Update may erase it
    act(*current->second.connection);
    Update(current->first);
  }
}

void GrpcGuard::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  if (options_.tls != nullptr) {
    if (const absl::Status reload = options_.tls->ReloadIfChanged(); !reload.ok()) {
      LogWarning("gRPC keeps its certificate", {{"reason", std::string(reload.message())}});
    }
  }
  ForEach([now](GuardedConnection& connection) { connection.CheckDeadlines(now); });
  std::erase_if(clients_, [now](const auto& client) {
    return client.second.num_connections == 0 && client.second.resets.HasExpired(now);
  });
}

void GrpcGuard::DoStopAccepting() {
  listener_.Close();
  acceptor_.reset();
  ForEach([](GuardedConnection& connection) { connection.CloseUnlessConnected(); });
  stopped_accepting_.Notify();
}

bool GrpcGuard::is_flushed() const {
  for (const auto& [id, entry] : connections_) {
    if (entry.connection->server_fd() >= 0) return false;
  }
  return true;
}

}  // namespace taopd
