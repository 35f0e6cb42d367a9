// The interface between the front, which speaks HTTP, and the program behind it, and the front's
// limits.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/parser/request_parser.h"
#include "server/net/client_name.h"
#include "server/serving/byte_budget.h"

namespace taopd {

struct FrontLimits {
  RequestLimits request;
  // The limits of all clients together and of one. A connection beyond them takes the place of one
  // for which no request is being answered. It is chosen by these rules, in this order:
  //   1. Beyond the limit of one client it is a connection of this client, otherwise one of the
  //      client with the most connections.
  //   2. One that only waits for the client to close it goes first, then one without a request,
  //      then one with an incomplete TLS handshake or head, then one with an incomplete body.
  //   3. The one without progress for the longest time goes first.
  // A request that has begun gets 503, if the socket takes the answer without waiting.
  // If no connection can be closed, the new one may only request probes.
  int max_connections = 4096;
  int max_connections_per_client = 1024;
  int num_threads = 256;  // worker threads, started on demand
  // The share of these threads that one client may hold (TurnQueue).
  double max_client_worker_share = 0.5;
  int num_probe_threads = 2;

  absl::Duration handshake_timeout = absl::Seconds(10);  // TLS handshake
  absl::Duration idle_timeout = absl::Seconds(60);       // between requests
  absl::Duration head_timeout = absl::Seconds(10);       // from a request's first byte
  absl::Duration request_timeout = absl::Seconds(60);    // head and body
  absl::Duration linger_timeout = absl::Seconds(2);      // after the last answer
  // In each of these windows a body, or an answer, must make progress at this rate.
  absl::Duration read_window = absl::Seconds(5);
  absl::Duration write_window = absl::Seconds(30);
  int64_t min_bytes_per_second = 1024;
};

// An answer in the form in which it is sent.
struct WireAnswer {
  std::string head;  // including the empty line
  std::string body;
  bool close = false;  // the connection ends after the answer, as its head says
};

// A complete request while a worker thread answers it. It belongs to the front and lives until the
// answer has been sent.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual ParsedRequest& request() = 0;           // the body may be moved from
  virtual const std::string& client() const = 0;  // the address (ClientIdentity), without the port
  virtual absl::Time begun_at() const = 0;        // when the first byte came
  // Returns whether the client has closed its side or is gone. Never waits; any thread may call.
  virtual bool IsGone() const = 0;
  // Keeps the reservation until the answer has been sent. Any thread may call.
  virtual void HoldMemory(ByteBudget::Reservation memory) = 0;
  // Sends a part of an answer that is made while it is sent, and waits until the system has taken
  // it. Returns false if the client is gone or reads too slowly: the connection will be closed.
  // Only the worker's thread may call.
  virtual bool Write(std::string_view bytes) = 0;
  // Ends the exchange; the front sends the answer after what Write has sent. Call it once, last.
  virtual void Finish(WireAnswer answer) = 0;
};

// The routes that a connection may ask for.
enum class Access {
  kAll,
  kProbePort,  // probes only: the listener is for them
  kOverflow,   // probes only: there are too many connections
};
inline constexpr size_t kNumAccesses = 3;

// The client of a request.
struct ClientIdentity {
  std::string address;     // for logs: the connection's, or the one that a trusted proxy names
  std::string subscriber;  // for the limit of connections: SubscriberOf the address
  std::string name;        // for turns and shares (server/net/client_name.h)
};

// Checks that do not block run on the front's own thread, which serves all connections.
class FrontHandler {
 public:
  virtual ~FrontHandler() = default;
  // Returns whether Identify may name another client than the one that has connected from this
  // address. Must not block.
  virtual bool IsTrustedProxy(const std::string& /*peer*/) const { return false; }
  // Called when a head was admitted; `peer` is the connection's address. Must not block.
  virtual ClientIdentity Identify(const RequestHead& head, const std::string& peer) const {
    return {peer, SubscriberOf(peer), SubscriberOf(peer)};
  }
  // Called when a head is complete, before its body is read. Returns the answer if the request is
  // refused; it must close if the request has a body. `peer` is the connection's address. Must not
  // block.
  virtual std::optional<WireAnswer> Admit(const RequestHead& head, Access access,
                                          const std::string& peer) = 0;
  // Returns whether the request goes to the threads for probes. Must not block.
  virtual bool IsProbe(const RequestHead& head) const = 0;
  // Returns the answer to a request that could not be read. It closes the connection. `head` is
  // empty if it could not be read either; `client` is the address (ClientIdentity), or the
  // connection's if no head was admitted. Must not block.
  virtual WireAnswer Refuse(const Refusal& refusal, const RequestHead& head,
                            const std::string& client) = 0;
  // Answers the request on a worker thread. Must call Finish and must not throw. May block.
  virtual void Handle(Exchange& exchange) = 0;
};

}  // namespace taopd
