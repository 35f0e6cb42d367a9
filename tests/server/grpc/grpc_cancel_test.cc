// Clients that go away at any moment, in their thousands, while an engine answers from its own
// thread. Meant to be run under ASan and TSan as well; score_stream_test reaches each moment by
// hand.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

class GrpcCancelTest : public GrpcServerFixture {
 protected:
  // The server still answers, and nothing is held once it has ended.
  void ExpectNothingIsLeft() {
    EXPECT_OK(Score());
    ShutDown();
    EXPECT_EQ(state_.message_budget().num_used(), 0);
  }
};

constexpr int kNumClients = 4;
constexpr int kNumCallsOfAClient = 500;

// Runs `call(random)` kNumCallsOfAClient times in each of kNumClients threads.
template <typename Call>
void FromManyClients(const Call& call) {
  std::vector<std::thread> clients;
  for (int i = 0; i < kNumClients; ++i) {
    clients.emplace_back([&call, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      for (int j = 0; j < kNumCallsOfAClient; ++j) call(random);
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_F(GrpcCancelTest, CancelledStreamsLeaveNothingBehind) {
  Ready();
  FromManyClients([&](std::mt19937& random) {
    grpc::ClientContext context;
    auto stream = stub_->ScoreStream(&context);
    const uint32_t num_messages = 1 + random() % 12;
    const uint32_t num_read = random() % (num_messages + 1);
    for (uint32_t i = 0; i < num_messages; ++i) stream->Write(MakeScoreRequest());
    v1::ScoreStreamResponse response;
    for (uint32_t i = 0; i < num_read; ++i) stream->Read(&response);
    if (random() % 2 == 0) {
      context.TryCancel();
    } else {  // while another thread still writes
      std::thread canceller([&] { context.TryCancel(); });
      while (stream->Write(MakeScoreRequest())) {
      }
      canceller.join();
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  });
  ExpectNothingIsLeft();
}

TEST_F(GrpcCancelTest, CallsThatEndByTheirDeadlineLeaveNothingBehind) {
  Ready();
  FromManyClients([&](std::mt19937& random) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(random() % 1000));
    v1::ScoreResponse response;
    const grpc::Status status = stub_->Score(&context, MakeScoreRequest(), &response);
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
        << status.error_code() << " " << status.error_message();
  });
  ExpectNothingIsLeft();
}

TEST_F(GrpcCancelTest, ShutdownAmidOpenStreamsEndsThemAll) {
  Ready();
  std::atomic<int> num_answers{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kNumClients; ++i) {
    clients.emplace_back([&] {
      for (;;) {
        grpc::ClientContext context;
        auto stream = stub_->ScoreStream(&context);
        v1::ScoreStreamResponse response;
        if (!stream->Write(MakeScoreRequest()) || !stream->Read(&response)) {
          EXPECT_FALSE(stream->Finish().ok());
          return;  // the server has gone
        }
        while (stream->Write(MakeScoreRequest()) && stream->Read(&response)) {
          if (response.has_response()) ++num_answers;
        }
        EXPECT_FALSE(stream->Finish().ok());
      }
    });
  }
  while (num_answers < 200) std::this_thread::yield();
  ShutDown();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(state_.message_budget().num_used(), 0);
}

}  // namespace
}  // namespace taopd::testing
