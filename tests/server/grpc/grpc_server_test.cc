// The gRPC server with real sockets on 127.0.0.1 and an engine that can hold work back.
#include "server/grpc/grpc_server.h"

#include <thread>

#include "server/grpc/calls/call_services.h"
#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using GrpcServerTest = GrpcServerFixture;

TEST_F(GrpcServerTest, UnavailableWhileLoadingThenServes) {
  grpc::ClientContext context;
  v1::GetTeacherInfoResponse info;
  EXPECT_ERROR(stub_->GetTeacherInfo(&context, {}, &info), kUnavailable, "");
  EXPECT_ERROR(Score(), kUnavailable, "");

  Ready();
  grpc::ClientContext second;
  ASSERT_OK(stub_->GetTeacherInfo(&second, {}, &info));
  EXPECT_EQ(info.model_name(), "fake");
  EXPECT_EQ(info.revision(), "0123456789abcdef");
  EXPECT_EQ(info.tokenizer_hash(), "tokenizer-hash");
  EXPECT_EQ(info.tokenizer_vocab_size(), 32u);
  EXPECT_EQ(info.head_vocab_size(), 32u);
  EXPECT_EQ(info.max_model_len(), 64u);
  EXPECT_EQ(info.max_top_k(), 8u);
  EXPECT_EQ(info.max_candidates(), 4u);
  EXPECT_EQ(info.max_dense_vocab_size(), 32u);
  EXPECT_EQ(info.dtype(), "float32");
  EXPECT_TRUE(info.supports_temperature());
  EXPECT_EQ(info.protocol_version(), 1u);
  EXPECT_OK(Score());
}

TEST_F(GrpcServerTest, ScoreCarriesEveryArray) {
  Ready();
  v1::ScoreRequest request = MakeScoreRequest("everything");
  request.set_temperature(0.5f);
  request.mutable_options()->set_entropy(true);
  request.mutable_options()->set_rank(true);
  request.mutable_options()->set_support_stats(true);
  request.mutable_options()->set_dense(true);
  request.set_num_candidates(2);
  for (uint32_t id : {0, 1, 2, 3, 4, 5, 6, 31}) request.add_candidate_ids(id);
  request.set_expected_revision("0123456789abcdef");
  ASSERT_OK_AND_ASSIGN(const v1::ScoreResponse response, Score(request));

  const ScoreParams params = {.start = 2,
                              .top_k = 3,
                              .temperature = 0.5f,
                              .entropy = true,
                              .rank = true,
                              .support_stats = true,
                              .dense = true,
                              .num_candidates = 2,
                              .candidate_ids = {0, 1, 2, 3, 4, 5, 6, 31}};
  const ScoreRows rows = FakeScore({3, 1, 4, 1, 5, 9}, params);
  const auto expect_equal = [](const auto& actual, const auto& expected, size_t size) {
    ASSERT_EQ(expected.size(), size);
    ASSERT_EQ(static_cast<size_t>(actual.size()), size);
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(actual[static_cast<int>(i)], expected[i]) << i;
  };
  EXPECT_EQ(response.request_id(), "everything");
  EXPECT_EQ(response.revision(), "0123456789abcdef");
  EXPECT_EQ(response.top_k(), 3u);
  expect_equal(response.ids(), std::vector<uint32_t>(rows.ids.begin(), rows.ids.end()), 12);
  expect_equal(response.logprobs(), rows.log_probs, 12);
  expect_equal(response.log_tail(), rows.log_tail, 4);
  expect_equal(response.sampled_logprobs(), rows.sampled_log_probs, 4);
  expect_equal(response.sampled_ranks(),
               std::vector<uint32_t>(rows.sampled_ranks.begin(), rows.sampled_ranks.end()), 4);
  expect_equal(response.entropy(), rows.entropy, 4);
  expect_equal(response.candidate_logprobs(), rows.candidate_log_probs, 8);
  expect_equal(response.candidate_log_tail(), rows.candidate_log_tail, 4);
  expect_equal(response.dense_logprobs(), rows.dense_log_probs, 4 * 32);
  expect_equal(response.log_support_mass(), rows.log_support_mass, 4);
  expect_equal(response.log_sum_exp(), rows.log_sum_exp, 4);
  EXPECT_EQ(response.candidate_logprobs(7), -std::numeric_limits<float>::infinity());
}

TEST_F(GrpcServerTest, ClientOfARequestIsThePeersAddress) {
  Ready();
  ASSERT_OK(Score());
  grpc::ClientContext context;
  auto stream = stub_->ScoreStream(&context);
  v1::ScoreStreamResponse answer;
  ASSERT_TRUE(stream->Write(MakeScoreRequest()));
  ASSERT_TRUE(stream->Read(&answer));
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&answer));
  const std::vector<InferenceRequest> seen = fake_.engine->seen();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].client, "127.0.0.1");
  EXPECT_EQ(seen[1].client, "127.0.0.1");
}

TEST(PeerAddressTest, IsTheEndOfThePeersName) {
  EXPECT_EQ(PeerAddress("unix-abstract:taopd/12-3/10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(PeerAddress("unix-abstract:taopd/12-3/2001:db8::7"), "2001:db8::7");
}

TEST_F(GrpcServerTest, FullQueueSaysWhenToComeBack) {
  EngineLimits limits = kFakeLimits;
  limits.max_queued_tokens = 6;
  fake_ = MakeFakeModel(false, limits);
  Ready();
  fake_.engine->Hold(true);
  std::thread first([&] { EXPECT_OK(Score()); });
  fake_.engine->WaitForQueued(1);
  grpc::ClientContext context;
  v1::ScoreResponse response;
  EXPECT_ERROR(stub_->Score(&context, MakeScoreRequest(), &response), kResourceExhausted, "");
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find(kRetryPushbackKey);
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "500");
  fake_.engine->Hold(false);
  first.join();
}

TEST_F(GrpcServerTest, AnswersThatWouldNotFitInMemoryAreRefused) {
  Ready();
  fake_.engine->Hold(true);
  const ByteBudget::Reservation most =
      state_.message_budget().TryReserve(state_.message_budget().max_bytes() - 100);
  EXPECT_ERROR(Score(), kResourceExhausted, "max_message_memory_bytes");
}

TEST_F(GrpcServerTest, DeadlineReachesTheEngineAndCancels) {
  Ready();
  fake_.engine->Hold(true);
  // On a busy machine a call may end before it reaches the engine.
  for (auto limit = std::chrono::milliseconds(250); fake_.engine->seen().empty(); limit *= 2) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    v1::ScoreResponse response;
    EXPECT_ERROR(stub_->Score(&context, MakeScoreRequest(), &response), kDeadlineExceeded, "");
  }
  fake_.engine->WaitForCancels(1);
  EXPECT_LT(fake_.engine->seen().back().deadline, absl::Now() + absl::Seconds(10));
}

TEST_F(GrpcServerTest, EngineErrorsKeepTheirCode) {
  Ready();
  fake_.engine->FailWith(Internal("device lost"));
  EXPECT_ERROR(Score(), kInternal, "device lost");
}

TEST_F(GrpcServerTest, OversizedMessageIsRefusedAndTheServerLives) {
  Ready();
  v1::ScoreRequest request = MakeScoreRequest();
  request.mutable_token_ids()->Resize(kMaxMessageBytes / 4 + 1, 0);
  EXPECT_ERROR(Score(request), kResourceExhausted, "");
  EXPECT_OK(Score());
}

TEST_F(GrpcServerTest, HealthTellsReadyFromAlive) {
  EXPECT_EQ(Health(""), 2);
  EXPECT_EQ(Health("liveness"), 2);
  Ready();
  server_->UpdateHealth();
  EXPECT_EQ(Health(""), 1);
  EXPECT_EQ(Health("taopd.v1.Teacher"), 1);
  EXPECT_EQ(Health("liveness"), 1);
  EXPECT_EQ(Health("unknown"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  state_.SetLeaving();
  server_->UpdateHealth();
  EXPECT_EQ(Health(""), 2);
  EXPECT_EQ(Health("taopd.v1.Teacher"), 2);
  EXPECT_EQ(Health("liveness"), 1);
}

TEST_F(GrpcServerTest, PortInUseIsUnavailable) {
  EXPECT_ERROR(GrpcServer::Listen("127.0.0.1", server_->port(), &state_, &metrics_), kUnavailable,
               Concat("port ", server_->port()));
}

}  // namespace
}  // namespace taopd::testing
