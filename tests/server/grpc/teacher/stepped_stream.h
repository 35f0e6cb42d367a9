// A ScoreStream between a wire and an engine that a test moves by hand, one event at a time and
// without threads. gRPC may run reactions at any moment that its contract allows, for example
// OnCancel before the OnReadDone of a message that has already arrived; here each of these moments
// is reached on purpose.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/message_bytes.h"
#include "server/grpc/teacher/score_stream.h"
#include "tests/server/fake_engine.h"
#include "tests/server/grpc/grpc_status.h"
#include "tests/server/grpc/score_requests.h"
#include "tests/support/status_matchers.h"
#include "tests/support/stub_engine.h"

namespace taopd::testing {

// Takes requests and answers them when the test says so, in the order that the test chooses.
class SteppedEngine final : public StubEngine {
 public:
  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    const RequestHandle handle = ++last_handle_;
    open_.emplace(handle, Item{std::move(request), std::move(done)});
    if (during_submit) during_submit(handle);
    return handle;
  }
  void Cancel(RequestHandle handle) override { cancelled.push_back(handle); }
  EngineLimits limits() const override { return kFakeLimits; }

  // Answers the request, and keeps its callback until ForgetCallbacks, as an engine's thread does
  // that has not yet returned from the call.
  void Complete(RequestHandle handle, absl::Status status = absl::OkStatus()) {
    Item item = std::move(open_.extract(handle).mapped());
    used_callbacks_.push_back(std::move(item.done));
    if (status.ok()) {
      InferenceResult result = {.score = FakeScore(item.request.token_ids, *item.request.score)};
      used_callbacks_.back()(std::move(result));
    } else {
      used_callbacks_.back()(status);
    }
  }
  void ForgetCallbacks() { used_callbacks_.clear(); }
  void ForgetAll() {
    used_callbacks_.clear();
    open_.clear();
  }

  RequestHandle num_submitted() const { return last_handle_; }
  std::vector<RequestHandle> open() const {
    std::vector<RequestHandle> handles;
    for (const auto& [handle, item] : open_) handles.push_back(handle);
    return handles;
  }

  // Runs inside Submit, after the request was taken.
  std::function<void(RequestHandle)> during_submit;
  std::vector<RequestHandle> cancelled;

 private:
  struct Item {
    InferenceRequest request;
    InferenceDone done;
  };
  RequestHandle last_handle_ = 0;
  std::map<RequestHandle, Item> open_;
  std::deque<InferenceDone> used_callbacks_;
};

// Runs `during_now` inside Now: a stream asks for the time when it takes a message.
class HookedClock final : public Clock {
 public:
  absl::Time Now() override {
    if (during_now) during_now();
    return absl::UnixEpoch();
  }
  void SleepFor(absl::Duration) override {}
  std::function<void()> during_now;
};

// gRPC's side of a call. Fails the test when the stream breaks gRPC's rules: one read and one write
// at a time, one Finish, nothing after it.
class SteppedWire final
    : public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  void Bind(grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* stream) {
    BindReactor(stream);
  }
  void Finish(grpc::Status status) override {
    EXPECT_FALSE(final_status.has_value()) << "Finish twice";
    EXPECT_EQ(writing, nullptr) << "Finish during a write";
    final_status = std::move(status);
  }
  void Read(grpc::ByteBuffer* request) override {
    EXPECT_EQ(reading, nullptr) << "two reads at a time";
    EXPECT_FALSE(final_status.has_value()) << "a read after Finish";
    reading = request;
  }
  void Write(const grpc::ByteBuffer* response, grpc::WriteOptions) override {
    EXPECT_EQ(writing, nullptr) << "two writes at a time";
    EXPECT_FALSE(final_status.has_value()) << "a write after Finish";
    writing = response;
  }
  void WriteAndFinish(const grpc::ByteBuffer*, grpc::WriteOptions, grpc::Status) override {
    ADD_FAILURE() << "not used";
  }
  void SendInitialMetadata() override {}

  // The answer that is being written.
  v1::ScoreStreamResponse Written() const {
    grpc::ByteBuffer bytes = *writing;
    v1::ScoreStreamResponse response;
    EXPECT_OK(ParseMessage(&bytes, &response));
    return response;
  }

  grpc::ByteBuffer* reading = nullptr;
  const grpc::ByteBuffer* writing = nullptr;
  std::optional<grpc::Status> final_status;

 private:
  grpc::internal::ServerReactor* reactor() override { return nullptr; }
  void CallOnDone() override {}
};

// One stream and its surroundings, started.
class SteppedStream {
 public:
  // Answers are made by `delivery` if it is not null, and otherwise immediately.
  explicit SteppedStream(WorkerPool* delivery = nullptr) {
    auto model = std::make_shared<ServedModel>();
    auto owned_engine = std::make_unique<SteppedEngine>();
    engine = owned_engine.get();
    model->limits = engine->limits();
    model->engine = std::move(owned_engine);
    model->revision = "0123456789abcdef";
    this->model = model;
    state.SetReady(model);
    stream_ = std::make_shared<ScoreStream>(
        CallServices{&state, &metrics, &tracker, nullptr, delivery}, Caller{.client = "client"},
        "client", [this](ScoreStream*) { stream_.reset(); });
    watched = stream_;
    raw_ = stream_.get();
    raw_->Start();
    wire.Bind(raw_);
  }
  // A test may end before the call does: then the engine's callbacks own the stream, which owns the
  // model and with it the engine.
  ~SteppedStream() { engine->ForgetAll(); }

  // gRPC's reactions. A read that has arrived may be reported after OnCancel.
  void Receive(const v1::ScoreRequest& request) { Receive(SerializeMessage(request)); }
  void Receive(const grpc::ByteBuffer& message) {
    ASSERT_NE(wire.reading, nullptr);
    *std::exchange(wire.reading, nullptr) = message;
    raw_->OnReadDone(true);
  }
  // A message that breaks off in the middle of its request_id.
  void ReceiveMalformed() {
    const grpc::Slice slice(std::string("\x0a\x05r"));
    Receive(grpc::ByteBuffer(&slice, 1));
  }
  void EndReads() {
    ASSERT_NE(wire.reading, nullptr);
    wire.reading = nullptr;
    raw_->OnReadDone(false);
  }
  void EndWrite(bool ok) {
    ASSERT_NE(wire.writing, nullptr);
    wire.writing = nullptr;
    raw_->OnWriteDone(ok);
  }
  void Cancel() { raw_->OnCancel(); }
  void Drain() { raw_->Drain(); }
  // The last reaction. After it the stream belongs to nobody but the engine's callbacks.
  void Done() {
    ASSERT_TRUE(wire.final_status.has_value());
    raw_->OnDone();
  }

  HookedClock clock;
  ServingState state{&clock, absl::Seconds(60)};
  ServerMetrics metrics;
  CallTracker tracker;
  std::shared_ptr<const ServedModel> model;
  SteppedEngine* engine;
  SteppedWire wire;
  std::weak_ptr<ScoreStream> watched;

 private:
  std::shared_ptr<ScoreStream> stream_;
  ScoreStream* raw_;
};

}  // namespace taopd::testing
