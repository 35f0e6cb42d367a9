// The streaming call with real sockets: answers, bounds, cancellation and shutdown.
#include <set>
#include <thread>

#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/support/process.h"

namespace taopd::testing {
namespace {

class GrpcStreamTest : public GrpcServerFixture {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ScoreRequest, v1::ScoreStreamResponse>;

  std::unique_ptr<Stream> StreamWithThreeRequestsInTheEngine(grpc::ClientContext* context) {
    Ready();
    fake_.engine->Hold(true);
    auto stream = stub_->ScoreStream(context);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(stream->Write(MakeScoreRequest(std::to_string(i))));
    fake_.engine->WaitForQueued(3);
    return stream;
  }
};

TEST_F(GrpcStreamTest, StreamAnswersEachRequestOnce) {
  Ready();
  constexpr int kNumRequests = 300;
  grpc::ClientContext context;
  auto stream = stub_->ScoreStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < kNumRequests; ++i) {
      v1::ScoreRequest request = MakeScoreRequest(std::to_string(i));
      if (i % 50 == 7) request.set_top_k(99);
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::set<std::string> answered;
  int num_errors = 0;
  v1::ScoreStreamResponse response;
  while (stream->Read(&response)) {
    EXPECT_TRUE(answered.insert(response.request_id()).second);
    if (response.has_error()) {
      ++num_errors;
      EXPECT_EQ(response.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_THAT(response.error().message(), HasSubstr("top_k 99"));
    } else {
      EXPECT_EQ(response.response().request_id(), response.request_id());
      EXPECT_EQ(response.response().ids_size(), 12);
    }
  }
  writer.join();
  EXPECT_OK(stream->Finish());
  EXPECT_EQ(answered.size(), static_cast<size_t>(kNumRequests));
  EXPECT_EQ(num_errors, 6);
}

TEST_F(GrpcStreamTest, StreamHoldsABoundedNumberInTheEngine) {
  Ready();
  fake_.engine->Hold(true);
  constexpr int kNumRequests = 200;
  grpc::ClientContext context;
  auto stream = stub_->ScoreStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < kNumRequests; ++i)
      EXPECT_TRUE(stream->Write(MakeScoreRequest(std::to_string(i))));
    stream->WritesDone();
  });
  fake_.engine->WaitForQueued(64);
  fake_.engine->Hold(false);
  int num_answers = 0;
  v1::ScoreStreamResponse response;
  while (stream->Read(&response)) ++num_answers;
  writer.join();
  EXPECT_OK(stream->Finish());
  EXPECT_EQ(num_answers, kNumRequests);
  EXPECT_EQ(fake_.engine->max_queued(), 64u);
}

// An engine's thread that let go of the last reference would wait for itself.
TEST_F(GrpcStreamTest, WhatWaitsInTheEngineDoesNotOwnIt) {
  grpc::ClientContext context;
  const auto stream = StreamWithThreeRequestsInTheEngine(&context);
  // This test, the state and the stream; the handler of the last request may still be leaving.
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return fake_.model.use_count() == 3; }))
      << fake_.model.use_count();
  context.TryCancel();
}

TEST_F(GrpcStreamTest, CancelledStreamCancelsItsWork) {
  grpc::ClientContext context;
  const auto stream = StreamWithThreeRequestsInTheEngine(&context);
  context.TryCancel();
  fake_.engine->WaitForCancels(3);
  v1::ScoreStreamResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcStreamTest, ShutdownAnswersAcceptedWorkAndEndsIdleStreams) {
  Ready();
  fake_.engine->Hold(true);
  grpc::ClientContext idle_context, busy_context;
  auto idle = stub_->ScoreStream(&idle_context);
  auto busy = stub_->ScoreStream(&busy_context);
  ASSERT_TRUE(idle->Write(MakeScoreRequest("idle")));
  ASSERT_TRUE(busy->Write(MakeScoreRequest("busy")));
  fake_.engine->WaitForQueued(2);
  state_.SetDraining();
  std::thread shutdown([&] {
    fake_.engine->Drain(absl::InfiniteFuture());
    server_->Shutdown(absl::Now() + absl::Seconds(30));
  });
  fake_.engine->Hold(false);
  v1::ScoreStreamResponse response;
  ASSERT_TRUE(busy->Read(&response));
  EXPECT_TRUE(response.has_response());
  ASSERT_TRUE(idle->Read(&response));
  EXPECT_FALSE(idle->Read(&response));
  EXPECT_EQ(idle->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(busy->Read(&response));
  EXPECT_EQ(busy->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  const absl::Time begun_at = absl::Now();
  shutdown.join();
  EXPECT_LT(absl::Now() - begun_at, absl::Seconds(20));  // not by the deadline
  server_.reset();
}

}  // namespace
}  // namespace taopd::testing
