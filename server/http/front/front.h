// The front of the HTTP server. One thread waits for all connections and reads requests; a complete
// request is passed to a worker thread. Slow, idle or many clients hold no thread, and only the
// memory that they have filled.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/sharing/turn_queue.h"
#include "common/base/worker_pool.h"
#include "server/http/front/connection.h"
#include "server/http/front/front_handler.h"
#include "server/net/listener.h"
#include "server/net/poller.h"
#include "server/serving/byte_budget.h"
#include "server/serving/call_tracker.h"
#include "server/serving/client_amounts.h"

namespace taopd {

class Front {
 public:
  // Returns the current TLS context of a listener; called for each connection.
  using TlsSource = std::function<std::shared_ptr<SSL_CTX>()>;

  // `handler` and `budget` must outlive the front. `on_failure` is called, on the front's thread,
  // when a listener can no longer accept.
  Front(const FrontLimits& limits, FrontHandler* handler, ByteBudget* budget,
        std::function<void()> on_failure);
  ~Front();

  // Call it before Start. If `tls` is null, the listener speaks plain HTTP.
  void AddListener(Listener listener, bool probes_only, TlsSource tls);
  absl::Status Start();
  // Continues to serve until no request is in progress or `deadline` has passed, then closes
  // everything. May be called again.
  void Shutdown(absl::Time deadline);

 private:
  struct Port {
    Listener listener;
    bool probes_only;
    TlsSource tls;
    uint64_t id = 0;  // the first ids belong to the ports
    uint32_t watched = 0;
    absl::Time paused_until = absl::InfinitePast();
  };
  struct Entry {
    std::unique_ptr<Connection> connection;
    uint32_t watched = 0;
  };

  void Loop();
  void HandleEvent(uint64_t id, absl::Time now);
  void Accept(Port* port, absl::Time now);
  void Add(Port* port, AcceptedSocket socket, absl::Time now);
  void Pause(Port* port, absl::Time until);
  void Resume(Port* port);
  void Sweep(absl::Time now);
  void SendFinishedAnswers(absl::Time now);
  void RunReady(absl::Time now);
  int& num_connections(Access access) { return num_connections_[static_cast<size_t>(access)]; }
  // Watches the events of the connection's new state, or destroys a closed connection. Call it
  // after anything that may have changed the state.
  void Update(uint64_t id);
  // Acts on all connections and updates them.
  void ForEach(const std::function<void(Connection& connection)>& act);
  // Closes the connection that loses least among those that `may_close` accepts. Returns false if
  // there is none.
  bool EvictOne(const std::function<bool(const Entry&)>& may_close, absl::Time now);
  // Returns the access that a new connection gets, or nullopt if the server is full. May close
  // another connection to make room.
  std::optional<Access> MakePlace(const Port& port, const AcceptedSocket& socket, absl::Time now);
  bool EvictStalledBody(const Connection& connection, bool same_client);
  void Dispatch(Connection& connection);
  void StartWork();
  void BeginStop();

  const FrontLimits limits_;
  FrontHandler* const handler_;
  const std::function<void()> on_failure_;
  int max_connections_ = 0;  // the limit that the descriptors allow
  Poller poller_;

  // The front's thread only.
  std::vector<std::unique_ptr<Port>> ports_;
  std::unordered_map<uint64_t, Entry> connections_;
  std::array<int, kNumAccesses> num_connections_{};
  std::vector<uint64_t> ready_;   // have something to do without an event
  ClientAmounts clients_;         // connections by subscriber
  TurnQueue<Connection*> turns_;  // for workers; a connection that waits does not close
  uint64_t next_id_;
  bool stopping_ = false;

  CallTracker tracker_;
  Connection::Shared shared_;
  WorkerPool workers_;
  WorkerPool probe_workers_;
  std::atomic<bool> stop_requested_{false};
  absl::Mutex mutex_;
  std::vector<uint64_t> finished_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace taopd
