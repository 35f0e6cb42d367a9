// Accepts the connections of a gRPC server and relays them to the gRPC library: it terminates TLS,
// checks the frames (FrameGuard), and gives gRPC one end of a pair of sockets for each connection.
// Debian's gRPC 1.51 must neither see strangers' frames nor accept connections itself: it stops
// accepting for good once it has run out of file descriptors (CVE-2023-4785).
//
// The peer of gRPC's end is named "\0taopd/.../ADDRESS" in Linux's abstract namespace, so that
// calls know the client's address (PeerAddress, server/grpc/calls/call_services.h).
//
// One thread drives all connections. New connections are closed immediately beyond the limits of
// their number, and while descriptors are scarce, so that HTTP has some left.
#pragma once

#include <absl/synchronization/notification.h>
#include <absl/time/time.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/grpc/guard/client_limits.h"
#include "server/grpc/guard/frame_guard.h"
#include "server/grpc/guard/guarded_connection.h"
#include "server/net/client_name.h"
#include "server/net/listener.h"
#include "server/net/poller.h"
#include "server/security/tls_files.h"
#include "server/serving/byte_budget.h"

namespace taopd {

class GrpcGuard {
 public:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  static constexpr int kMaxConnections = 4096;
  static constexpr int kMaxConnectionsPerClient = 1024;

  struct Options {
    FrameGuard::Limits limits;
    TlsFiles* tls = nullptr;       // null: plain. Reloaded when the files change.
    ByteBudget* budget = nullptr;  // the budget of all messages
    // Each connection of a proxy counts as a client, because it carries the calls of many clients.
    const TrustedProxies* proxies = nullptr;
    // Called once, on the guard's thread, when the listener can no longer accept.
    std::function<void()> on_failure;
    // Called on the guard's thread for each call that is refused and for each connection that is
    // ended because of its frames.
    std::function<void(const std::string& address, const absl::Status& why)> on_refusal;
  };

  // `connections` belong to a running server, which must have LocalServerCredentials(UDS) or
  // insecure credentials. The objects that `options` names must outlive the guard.
  GrpcGuard(Listener listener, std::unique_ptr<Connections> connections, const Options& options);
  // Sends pending output for at most a second, then closes all connections. REQUIRES: the server
  // has been shut down.
  ~GrpcGuard();

  // Closes the listener and hands gRPC no more connections, which it would not close after its
  // server is shut down. Open connections continue.
  void StopAccepting();

 private:
  struct Entry {
    std::unique_ptr<GuardedConnection> connection;
    std::string client;  // the client that it counts for
    uint32_t client_watched = 0;
    uint32_t server_watched = 0;
  };
  struct Client {
    int num_connections = 0;
    ResetRate resets;
  };

  void Loop();
  // Returns false if accepting has failed for now.
  bool AcceptAll(absl::Time now);
  void Add(const AcceptedSocket& socket, absl::Time now);
  // Returns the guard's end of a new pair of sockets; gRPC has the other one.
  int Connect(const std::string& address);
  void RunConnection(uint64_t id, absl::Time now);
  // Watches the events of the connection's new state, or destroys a closed connection.
  void Update(uint64_t id);
  // Acts on all connections and updates them. REQUIRES: `act` closes at most the connection that it
  // is called with, and opens none.
  void ForEach(const std::function<void(GuardedConnection& connection)>& act);
  void Tick(absl::Time now);
  void DoStopAccepting();
  bool is_flushed() const;

  Listener listener_;
  std::unique_ptr<Connections> acceptor_;
  const Options options_;
  Poller poller_;

  // Used only by the guard's thread.
  RelayBuffer buffer_;
  std::unordered_map<uint64_t, Entry> connections_;
  std::unordered_map<std::string, Client> clients_;
  std::vector<uint64_t> ready_;  // connections with work that no event announces
  uint64_t next_id_ = 1;
  absl::Time next_tick_ = absl::InfinitePast();

  std::atomic<bool> stop_requested_{false};
  absl::Notification stopped_accepting_;
  std::atomic<bool> end_requested_{false};
  std::thread thread_;
};

}  // namespace taopd
