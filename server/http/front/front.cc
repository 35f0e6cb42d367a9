#include "server/http/front/front.h"

#include <absl/time/clock.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/log.h"
#include "server/net/descriptors.h"

namespace taopd {
namespace {

constexpr int kMaxAcceptsPerEvent = 64;
constexpr absl::Duration kSweepInterval = absl::Milliseconds(100);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(50);
// Limits of connections beyond the maximum, only for probes, and of connections of a probe port.
constexpr int kMaxOverflow = 16;
constexpr int kMaxProbeConnections = 64;
// A request without progress for this long yields its memory to one that progresses.
constexpr absl::Duration kStalled = absl::Seconds(1);

}  // namespace

Front::Front(const FrontLimits& limits, FrontHandler* handler, ByteBudget* budget,
             std::function<void()> on_failure)
    : limits_(limits),
      handler_(handler),
      on_failure_(std::move(on_failure)),
      turns_(limits.num_threads, limits.max_client_worker_share),
      shared_{.limits = limits_,
              .handler = *handler,
              .budget = *budget,
              .connections = clients_,
              .tracker = tracker_,
              .dispatch = [this](Connection& connection) { Dispatch(connection); },
              .make_room =
                  [this](Connection& connection, bool same_client) {
                    return EvictStalledBody(connection, same_client);
                  },
              .on_finished =
                  [this](uint64_t id) {
                    {
                      absl::MutexLock lock(&mutex_);
                      finished_.push_back(id);
                    }
                    poller_.Wake();
                  }},
      workers_(limits.num_threads),
      probe_workers_(limits.num_probe_threads) {}

Front::~Front() { Shutdown(absl::Now()); }

void Front::AddListener(Listener listener, bool probes_only, TlsSource tls) {
  ports_.push_back(std::make_unique<Port>(Port{std::move(listener), probes_only, std::move(tls)}));
}

absl::Status Front::Start() {
  if (!poller_.is_open()) return Unavailable("epoll: no file descriptors or watches are left");
  max_connections_ = std::min(limits_.max_connections, MaxHttpConnections());
  if (max_connections_ < limits_.max_connections) {
    LogWarning("few file descriptors: fewer HTTP connections",
               {{"max_connections", max_connections_}, {"asked", limits_.max_connections}});
  }
  next_id_ = Poller::kWakeId + 1;
  for (const auto& port : ports_) {
    port->id = next_id_++;
    Resume(port.get());
  }
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void Front::Shutdown(absl::Time deadline) {
  if (!thread_.joinable()) return;
  tracker_.WaitUntilIdle(deadline);
  stop_requested_ = true;
  poller_.Wake();
  thread_.join();
  workers_.Shutdown();
  probe_workers_.Shutdown();
}

void Front::Loop() {
  absl::Time next_sweep = absl::Now() + kSweepInterval;
  while (!stopping_ || !connections_.empty()) {
    const int timeout_ms =
        ready_.empty() ? static_cast<int>(absl::ToInt64Milliseconds(kSweepInterval)) : 0;
    const std::vector<uint64_t>& events = poller_.Wait(timeout_ms);
    const absl::Time now = absl::Now();
    for (const uint64_t id : events) HandleEvent(id, now);
    SendFinishedAnswers(now);
    RunReady(now);
    if (stop_requested_ && !stopping_) BeginStop();
    if (now >= next_sweep) {
      Sweep(now);
      next_sweep = now + kSweepInterval;
    }
  }
}

void Front::HandleEvent(uint64_t id, absl::Time now) {
  if (id <= ports_.size()) return Accept(ports_[id - 1].get(), now);
  const auto found = connections_.find(id);
  // An earlier event of the same round may have closed it or passed it to a worker.
  if (found == connections_.end() || found->second.watched == 0) return;
  found->second.connection->Run(now);
  Update(id);
}

void Front::Accept(Port* port, absl::Time now) {
  for (int i = 0; i < kMaxAcceptsPerEvent && !stopping_; ++i) {
    AcceptedSocket socket;
    switch (port->listener.Accept(&socket)) {
      case Listener::Result::kAccepted:
        Add(port, socket, now);
        break;
      case Listener::Result::kNone:
        return;
      case Listener::Result::kNoDescriptors:
        // The listener stays ready: without a pause, this thread would do nothing else.
        EvictOne([](const Entry&) { return true; }, now);
        return Pause(port, now + kAcceptPause);
      case Listener::Result::kDead:
        Pause(port, absl::InfiniteFuture());
        return on_failure_();
    }
  }
}

void Front::Pause(Port* port, absl::Time until) {
  port->paused_until = until;
  poller_.Watch(port->listener.fd(), port->id, 0, &port->watched);
}

void Front::Resume(Port* port) {
  port->paused_until = absl::InfinitePast();
  poller_.Watch(port->listener.fd(), port->id, EPOLLIN, &port->watched);
}

std::optional<Access> Front::MakePlace(const Port& port, const AcceptedSocket& socket,
                                       absl::Time now) {
  if (IsScarce(socket.fd)) {
    EvictOne([](const Entry&) { return true; }, now);
    return std::nullopt;
  }
  // A connection gives way only to one that may ask for the same: a flood of connections, which may
  // be told no more than that the server is full, must not close those of probes.
  const auto has_place = [&](Access access, int most) {
    const auto has_access = [access](const Entry& entry) {
      return entry.connection->access() == access;
    };
    return num_connections(access) < most || EvictOne(has_access, now);
  };
  const auto access_if_free = [&](Access access, int most) {
    return has_place(access, most) ? std::make_optional(access) : std::nullopt;
  };
  if (port.probes_only) return access_if_free(Access::kProbePort, kMaxProbeConnections);
  const auto is_of_client = [&](const Entry& entry) {
    return entry.connection->access() == Access::kAll &&
           entry.connection->subscriber() == socket.subscriber;
  };
  const bool client_has_place =
      clients_.Of(socket.subscriber) < limits_.max_connections_per_client ||
      EvictOne(is_of_client, now);
  if (client_has_place && has_place(Access::kAll, max_connections_)) return Access::kAll;
  return access_if_free(Access::kOverflow, std::min(kMaxOverflow, max_connections_));
}

void Front::Add(Port* port, AcceptedSocket socket, absl::Time now) {
  const uint64_t id = next_id_++;
  // A proxy's connections carry the requests of many clients: each one counts for itself until the
  // head of a request names a client.
  if (handler_->IsTrustedProxy(socket.address)) socket.subscriber = Concat("connection ", id);
  const std::optional<Access> access = MakePlace(*port, socket, now);
  if (!access) {
    ::close(socket.fd);
    return;
  }
  const std::shared_ptr<SSL_CTX> tls = port->tls ? port->tls() : nullptr;
  Entry& entry = connections_[id];
  entry.connection = std::make_unique<Connection>(id, socket, tls.get(), *access, &shared_, now);
  ++num_connections(*access);
  // The request is often there already.
  entry.connection->Run(now);
  Update(id);
}

void Front::Update(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Entry& entry = found->second;
  const Connection& connection = *entry.connection;
  poller_.Watch(connection.fd(), id, connection.waits_for(), &entry.watched);
  if (connection.state() == Connection::State::kClosed) {
    --num_connections(connection.access());
    connections_.erase(found);
  } else if (connection.wants_run()) {
    ready_.push_back(id);
  }
}

void Front::ForEach(const std::function<void(Connection& connection)>& act) {
  std::vector<uint64_t> ids;
  ids.reserve(connections_.size());
  for (const auto& [id, entry] : connections_) ids.push_back(id);
  for (const uint64_t id : ids) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    act(*found->second.connection);
    Update(id);
  }
}

void Front::RunReady(absl::Time now) {
  for (const uint64_t id : std::exchange(ready_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end() || !found->second.connection->wants_run()) continue;
    found->second.connection->Run(now);
    Update(id);
  }
}

void Front::SendFinishedAnswers(absl::Time now) {
  std::vector<uint64_t> finished;
  {
    absl::MutexLock lock(&mutex_);
    finished.swap(finished_);
  }
  for (const uint64_t id : finished) {
    Connection& connection = *connections_.at(id).connection;
    if (!handler_->IsProbe(connection.request().head)) turns_.Done(connection.client_name());
    connection.SendFinishedAnswer(now);
    if (stopping_) connection.Cut();
    Update(id);
  }
  if (!finished.empty()) StartWork();
}

void Front::Sweep(absl::Time now) {
  ForEach([now](Connection& connection) { connection.CheckDeadlines(now); });
  for (const auto& port : ports_) {
    if (port->watched == 0 && now >= port->paused_until && !stopping_) Resume(port.get());
  }
}

bool Front::EvictOne(const std::function<bool(const Entry&)>& may_close, absl::Time now) {
  // The victim belongs to the client with the most connections. Among these it is the one that
  // loses least, and among those the one that has been idle for the longest time.
  using Loss = std::tuple<int64_t, int, absl::Time>;
  uint64_t victim = 0;
  Loss least{};
  for (const auto& [id, entry] : connections_) {
    const Connection& connection = *entry.connection;
    const std::optional<int> rank = connection.EvictionRank();
    if (!rank || !may_close(entry)) continue;
    const Loss loss = {-clients_.Of(connection.subscriber()), *rank, connection.last_progress_at()};
    if (victim != 0 && loss >= least) continue;
    victim = id;
    least = loss;
  }
  if (victim == 0) return false;
  // Close immediately; unsent bytes of the answer are lost.
  connections_.at(victim).connection->Evict(now);
  connections_.at(victim).connection->Cut();
  Update(victim);
  return true;
}

bool Front::EvictStalledBody(const Connection& connection, bool same_client) {
  const absl::Time now = connection.last_progress_at();
  Connection* victim = nullptr;
  for (const auto& [id, entry] : connections_) {
    Connection& other = *entry.connection;
    if (&other == &connection || other.EvictionRank() != Connection::kRankOfBodies) continue;
    if (same_client && other.client_name() != connection.client_name()) continue;
    if (now - other.last_progress_at() < kStalled) continue;
    if (victim == nullptr || other.last_progress_at() < victim->last_progress_at()) victim = &other;
  }
  if (victim == nullptr) return false;
  victim->Evict(now);
  Update(victim->id());
  return true;
}

void Front::Dispatch(Connection& connection) {
  if (handler_->IsProbe(connection.request().head)) {
    return probe_workers_.Enqueue([this, &connection] { handler_->Handle(connection); });
  }
  turns_.Push(connection.client_name(), &connection);
  StartWork();
}

void Front::StartWork() {
  while (const std::optional<Connection*> next = turns_.Next())
    workers_.Enqueue([this, connection = *next] { handler_->Handle(*connection); });
}

void Front::BeginStop() {
  stopping_ = true;
  for (const auto& port : ports_) {
    Pause(port.get(), absl::InfiniteFuture());
    port->listener.Close();
  }
  ForEach([](Connection& connection) { connection.Cut(); });
}

}  // namespace taopd
