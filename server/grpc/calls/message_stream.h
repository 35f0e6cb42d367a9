// The server's side of a call that streams messages to the client: any thread may send, and the
// messages leave one after the other, in that order.
//
// Ownership: make it with std::make_shared and keep it until `on_done` runs, which is gRPC's last
// reaction. Senders may share the ownership, so the object may live a little longer; after End its
// functions do nothing.
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <utility>

#include "common/base/status.h"
#include "server/grpc/calls/call_services.h"
#include "server/grpc/calls/message_bytes.h"

namespace taopd {

template <typename Message>
class MessageStream final : public StreamedCall {
 public:
  // `context` is gRPC's. `on_cancel` runs, at most once, when the client has gone or a message
  // cannot be written; it must lead to End. `on_done` runs last and receives the status with which
  // the call ended.
  MessageStream(CallContext* context, std::function<void()> on_cancel,
                std::function<void(const absl::Status&)> on_done)
      : context_(context), on_cancel_(std::move(on_cancel)), on_done_(std::move(on_done)) {}

  // The number of waiting messages is not bounded: the sender bounds them by what it produces.
  void Send(Message message) {
    const Message* next = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_ || broken_) return;
      messages_.push_back(std::move(message));
      next = NextLocked();
    }
    if (next != nullptr) Write(*next);
  }

  // Ends the call after everything that was sent before. Only the first call has an effect.
  void End(const absl::Status& status) {
    bool finish = false;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return;
      ended_ = true;
      status_ = status;
      finish = FinishLocked();
    }
    if (finish) FinishCall();
  }

  void OnWriteDone(bool ok) override {
    const Message* next = nullptr;
    bool finish = false;
    written_.Clear();
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      messages_.pop_front();
      if (!ok) messages_.clear();
      next = NextLocked();
      finish = FinishLocked();
    }
    if (next != nullptr) Write(*next);
    if (finish) FinishCall();
    if (!ok) Break();
  }
  void OnCancel() override {
    Break();
    order_.CancelEnds();
  }
  void OnDone() override {
    order_.DoneBegins();
    // Both outlive the object.
    const auto on_done = on_done_;
    const absl::Status status = status_;
    on_done(status);
  }

 private:
  void FinishCall() {
    AddRetryPushback(status_, context_);
    Finish(ToGrpcStatus(status_));
  }
  void Write(const Message& message) {
    written_ = SerializeMessage(message);
    StartWrite(&written_);
  }
  void Break() {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(broken_, true)) return;
    }
    on_cancel_();
  }
  // Returns the message to write now, or null if none waits or one is being written.
  const Message* NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || messages_.empty()) return nullptr;
    writing_ = true;
    return &messages_.front();
  }
  bool FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ && !writing_ && messages_.empty() && !std::exchange(finished_, true);
  }

  CallContext* const context_;
  const std::function<void()> on_cancel_;
  const std::function<void(const absl::Status&)> on_done_;
  absl::Mutex mutex_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);  // the first is being written, or none is
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  CallBytes written_;  // the bytes of the write in progress
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_;  // written once, before Finish
  ReactionOrder order_;
};

}  // namespace taopd
