// One ScoreStream call: reads requests, hands them to the engine, and writes the answers in the
// order of completion. At most kMaxInFlight requests are in the engine or wait to be written;
// reading stops while there are that many, so flow control holds back a client that does not read
// its answers.
//
// Ownership: make it with std::make_shared and keep it until `on_done` runs, which is gRPC's last
// reaction. The engine's callbacks share the ownership, so the object may live a little longer; it
// releases the model before `on_done`, so that no engine is destroyed by its own thread.
//
// End: the call is finished when nothing is in the engine and no answer waits or is being written.
// A message whose reaction runs after that is dropped. A message that cannot be parsed has no
// request_id for an answer, so nothing is read after it, and the call ends with its error when
// everything accepted is answered.
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/call_services.h"

namespace taopd {

class ScoreStream final : public BidiCall, public std::enable_shared_from_this<ScoreStream> {
 public:
  static constexpr int64_t kMaxInFlight = 64;

  // `address` is the client's, for logs.
  ScoreStream(const CallServices& services, Caller caller, std::string address,
              std::function<void(ScoreStream*)> on_done)
      : services_(services),
        on_done_(std::move(on_done)),
        caller_(std::move(caller)),
        address_(std::move(address)) {}

  // Call it once, in the handler.
  void Start();
  // Ends the call with UNAVAILABLE as soon as everything accepted is answered. Any thread may call,
  // at any time.
  void Drain();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // An answer that waits to be written, with the memory that was reserved for it.
  struct Answer {
    std::unique_ptr<v1::ScoreStreamResponse> response;
    ByteBudget::Reservation memory;
  };
  // A request that the engine has.
  struct Pending {
    uint64_t number;
    std::string request_id;
    std::string revision;
    absl::Time started_at;
    ByteBudget::Reservation memory;  // for its answer
  };
  // The operations to start once the lock is released: gRPC may run a reaction inside these calls.
  struct Next {
    bool read = false;
    const v1::ScoreStreamResponse* write = nullptr;
    bool finish = false;
    grpc::Status status;
  };

  // Changes the state and starts the operations that follow from it.
  template <typename Change>
  void Advance(bool may_read, const Change& change);
  // Takes a message that has arrived.
  void Accept(CallBytes* message);
  absl::Status Submit(const v1::ScoreRequest& request, uint64_t number, absl::Time started_at);
  // Makes the answer to a request. Called on the delivery thread.
  void Respond(Pending* pending, const absl::StatusOr<InferenceResult>& result);
  void Complete(uint64_t number, Answer answer);
  // Ends the requests in the engine. No answer is written after this.
  void CancelAll();
  Next DecideLocked(bool may_read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallServices services_;
  const std::function<void(ScoreStream*)> on_done_;
  const Caller caller_;
  const std::string address_;

  ReactionOrder order_;
  CallBytes read_;     // filled by the one read in progress
  CallBytes written_;  // the bytes of the write in progress

  absl::Mutex mutex_;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // Held until OnDone, and not by the engine's callbacks: an engine's thread that released
  // the last reference would wait for itself.
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, RequestHandle> open_ ABSL_GUARDED_BY(mutex_);  // by number; 0 until submitted
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  Answer writing_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // the error of a message that could not be parsed
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // cancelled, or a write failed
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace taopd
