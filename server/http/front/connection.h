// One client's connection: reads a request, passes it to a worker, sends the answer, and begins
// again. A front's thread drives it by events; it never waits. While a worker thread answers
// (kWorking), the connection belongs to that thread, which uses it as an Exchange.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/http/front/front_handler.h"
#include "server/http/parser/request_parser.h"
#include "server/net/listener.h"
#include "server/security/transport.h"
#include "server/serving/byte_budget.h"
#include "server/serving/call_tracker.h"
#include "server/serving/client_amounts.h"

namespace taopd {

class Connection final : public Exchange {
 public:
  enum class State {
    kHandshake,  // TLS handshake
    kReading,    // waits for a request, or reads one
    kWorking,    // a worker answers
    kSending,    // the answer leaves
    kLingering,  // everything is sent; incoming bytes are discarded for a while: an immediate close
                 // would reset the connection, and the client could lose the answer
    kClosed,     // to be destroyed
  };

  // The state that a front's connections share. It must outlive them.
  struct Shared {
    const FrontLimits& limits;
    FrontHandler& handler;
    ByteBudget& budget;
    ClientAmounts& connections;
    CallTracker& tracker;
    std::function<void(Connection& connection)> dispatch;  // passes the request to a worker
    // Makes room in the budget for this connection: refuses a stalled request, of the same client
    // if `same_client`. Returns false if there is none.
    std::function<bool(Connection& connection, bool same_client)> make_room;
    std::function<void(uint64_t id)> on_finished;  // called by a worker, last
  };

  Connection(uint64_t id, const AcceptedSocket& socket, SSL_CTX* tls, Access access, Shared* shared,
             absl::Time now);
  ~Connection() override;

  // --- The front's thread ---
  uint64_t id() const { return id_; }
  int fd() const { return transport_.fd(); }
  State state() const { return state_; }
  Access access() const { return access_; }
  // Returns the subscriber for which the connection counts: the one that has connected or, while a
  // trusted proxy's request is read and answered, the one that the proxy names.
  const std::string& subscriber() const { return client_.subscriber; }
  // Returns the name of the client whose request is read or answered; before its head is read, that
  // of the client that has connected.
  const std::string& client_name() const { return client_.name; }
  // Returns the event for which Run waits: EPOLLIN, EPOLLOUT or 0.
  uint32_t waits_for() const { return waits_for_; }
  // Returns whether Run has something to do although the socket is not ready.
  bool wants_run() const { return state_ == State::kReading && !unread_.empty(); }
  // Does what can be done without waiting. REQUIRES: not kWorking.
  void Run(absl::Time now);
  // Ends the connection, or its request, if it takes too long. Call it several times per second.
  void CheckDeadlines(absl::Time now);
  // Sends the answer after the worker's Finish.
  void SendFinishedAnswer(absl::Time now);
  // Returns the rank of what is lost if the connection is closed in favor of another one:
  // kRankOfBodies while a body is read, less before that, and nullopt while the request is
  // answered.
  static constexpr int kRankOfBodies = 3;
  std::optional<int> EvictionRank() const;
  // Returns the time at which a byte last came or left.
  absl::Time last_progress_at() const { return last_progress_at_; }
  // Refuses a request that has begun, with 503, and gives its memory back.
  void Evict(absl::Time now);
  // Ends the connection immediately; the worker's Write fails from now on.
  void Cut();

  // --- The worker's thread ---
  ParsedRequest& request() override { return request_; }
  const std::string& client() const override { return client_.address; }
  absl::Time begun_at() const override { return begun_at_; }
  bool IsGone() const override { return transport_.IsGone(); }
  void HoldMemory(ByteBudget::Reservation memory) override;
  bool Write(std::string_view bytes) override;
  void Finish(WireAnswer answer) override;

 private:
  // Counts the bytes since `begun_at`. If a window has too few, the peer is too slow.
  struct Window {
    absl::Time begun_at;
    int64_t num_bytes = 0;
  };

  void ReadSome(absl::Time now);
  void Consume(std::string_view bytes, absl::Time now);
  // Returns false if the request was answered without its body or the connection has ended.
  bool AdmitHead(absl::Time now);
  bool ReserveArrived();
  bool TryReserveArrived(int64_t num_bytes);
  void Dispatch();
  void Refuse(const Refusal& refusal, absl::Time now);
  void StartSending(WireAnswer answer, absl::Time now);
  void SendSome(absl::Time now);
  void EndExchange(absl::Time now);
  void Discard();
  void Close();
  // Returns whether the peer is too slow. Begins a new window when this one has lasted `length`.
  bool IsTooSlow(absl::Duration length, absl::Time now);
  void ReleaseMemory();
  void BeginCall();
  // Sets the client, which the connection counts for from now on.
  void SetClient(ClientIdentity client);

  const uint64_t id_;
  Transport transport_;
  const ClientIdentity peer_;  // the client that has connected
  ClientIdentity client_;      // the client of the current request; peer_ before its head is read
  const Access access_;
  Shared* const shared_;

  State state_;
  uint32_t waits_for_ = 0;
  absl::Time state_since_;
  absl::Time begun_at_ = absl::InfinitePast();
  absl::Time last_progress_at_;
  Window window_;
  RequestParser parser_;
  std::string unread_;  // bytes after a complete request
  bool head_ended_ = false;
  bool is_counted_ = false;    // counted in the tracker
  int64_t arrived_bytes_ = 0;  // bytes reserved for the current request
  size_t discarded_bytes_ = 0;

  ParsedRequest request_;
  WireAnswer answer_;
  size_t sent_bytes_ = 0;  // bytes of answer_ that are sent
  absl::Mutex mutex_;
  std::vector<ByteBudget::Reservation> memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
