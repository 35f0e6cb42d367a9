#include <gmock/gmock.h>

#include <functional>
#include <set>
#include <thread>

#include "server/grpc/teacher/generate_call.h"
#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

class GenerateCallTest : public GrpcServerFixture {
 protected:
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.set_request_id("r");
    for (uint32_t id : {3, 5, 7}) request.add_token_ids(id);
    request.set_max_new_tokens(4);
    request.mutable_sampling()->set_temperature(0.5f);
    request.set_ignore_eos(true);
    return request;
  }
  absl::StatusOr<std::vector<v1::GenerateResponse>> Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return ReadAll(stub_->Generate(&context, request));
  }
  // Returns what the engine generates for Request().
  static GeneratedTokens Expected() {
    InferenceRequest inference = MakeGeneration({3, 5, 7}, 4);
    inference.sampling->temperature = 0.5f;
    inference.sampling->raw_log_probs = true;
    return FakeGenerate(inference);
  }
};

TEST_F(GenerateCallTest, OneMessagePerSequenceWithTokensAndLogProbs) {
  Ready();
  v1::GenerateRequest request = Request();
  request.set_n(3);
  request.set_seed(40);
  request.set_raw_logprobs(true);
  ASSERT_OK_AND_ASSIGN(const auto messages, Generate(request));
  ASSERT_EQ(messages.size(), 3u);
  const GeneratedTokens expected = Expected();
  std::set<uint32_t> indices;
  for (const v1::GenerateResponse& message : messages) {
    indices.insert(message.index());
    EXPECT_EQ(message.request_id(), "r");
    EXPECT_EQ(message.revision(), fake_.model->revision);
    EXPECT_EQ(message.finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_THAT(message.token_ids(), ElementsAreArray(expected.ids));
    EXPECT_THAT(message.logprobs(), ElementsAreArray(expected.log_probs));
    EXPECT_THAT(message.raw_logprobs(), ElementsAreArray(expected.raw_log_probs));
  }
  EXPECT_EQ(indices, (std::set<uint32_t>{0, 1, 2}));
  std::set<uint64_t> seeds;
  for (const InferenceRequest& seen : fake_.engine->seen()) seeds.insert(seen.sampling->seed);
  EXPECT_EQ(seeds, (std::set<uint64_t>{40, 41, 42}));
}

TEST_F(GenerateCallTest, StreamedTokensComeOneByOneAndTheLastMessageHasNone) {
  Ready();
  v1::GenerateRequest request = Request();
  request.set_stream_tokens(true);
  request.set_raw_logprobs(true);
  ASSERT_OK_AND_ASSIGN(const auto messages, Generate(request));
  const GeneratedTokens expected = Expected();
  ASSERT_EQ(messages.size(), expected.ids.size() + 1);
  for (size_t i = 0; i < expected.ids.size(); ++i) {
    EXPECT_THAT(messages[i].token_ids(), ElementsAre(expected.ids[i]));
    EXPECT_THAT(messages[i].logprobs(), ElementsAre(expected.log_probs[i]));
    EXPECT_THAT(messages[i].raw_logprobs(), ElementsAre(expected.raw_log_probs[i]));
    EXPECT_EQ(messages[i].finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  }
  EXPECT_EQ(messages.back().token_ids_size(), 0);
  EXPECT_EQ(messages.back().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(GenerateCallTest, RefusalsNameTheField) {
  EXPECT_ERROR(Generate(Request()), kUnavailable, "loading");
  Ready();
  using Edit = std::function<void(v1::GenerateRequest*)>;
  const std::pair<std::string, Edit> cases[] = {
      {"max_new_tokens", [](auto* r) { r->set_max_new_tokens(0); }},
      {"token_ids[1] is 2147483648", [](auto* r) { r->mutable_token_ids()->Set(1, 0x80000000u); }},
      {"top_p", [](auto* r) { r->mutable_sampling()->set_top_p(1.5f); }},
      {"request_id has 2000 bytes", [](auto* r) { r->set_request_id(std::string(2000, 'x')); }},
  };
  for (const auto& [text, edit] : cases) {
    v1::GenerateRequest request = Request();
    edit(&request);
    EXPECT_ERROR(Generate(request), kInvalidArgument, text);
  }
  v1::GenerateRequest request = Request();
  request.set_expected_revision("another");
  EXPECT_ERROR(Generate(request), kFailedPrecondition, "expected_revision another");
}

// Each sequence has a copy of the fields.
TEST_F(GenerateCallTest, CopiesOfTheFieldsAreCountedAndLimited) {
  fake_ = MakeFakeModel(false,
                        {.vocab_size = 131072, .max_model_len = 64, .max_queued_tokens = 100000});
  Ready();
  v1::GenerateRequest request = Request();
  for (int32_t id = 0; id < 70000; ++id) request.mutable_sampling()->add_allowed_token_ids(id);
  request.set_n(1024);
  EXPECT_ERROR(Generate(request), kInvalidArgument,
               "the sampling fields and the stop strings of all choices may take");
  request.set_n(8);
  const auto admitted = AdmitGeneration(request, {.client = "client"}, state_);
  ASSERT_OK(admitted);
  const int64_t one_message_each = state_.message_budget().num_used();
  EXPECT_GT(one_message_each, 8 * 70000 * 4);
  // Every message that waits has a copy of the id.
  request.set_stream_tokens(true);
  request.set_request_id(std::string(1000, 'r'));
  const auto streamed = AdmitGeneration(request, {.client = "client"}, state_);
  ASSERT_OK(streamed);
  EXPECT_GT(state_.message_budget().num_used() - 2 * one_message_each,
            8 * request.max_new_tokens() * 1000);
}

TEST_F(GenerateCallTest, AFullQueueSaysWhenToTryAgain) {
  Ready();
  fake_.engine->FailWith(ResourceExhausted("the queue is full"));
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request());
  v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count(kRetryPushbackKey), 1u);
}

TEST_F(GenerateCallTest, CancellingEndsAllSequences) {
  Ready();
  fake_.engine->Hold(true);
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.set_n(3);
  auto reader = stub_->Generate(&context, request);
  fake_.engine->WaitForQueued(3);
  context.TryCancel();
  fake_.engine->WaitForCancels(3);
  v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ShutDown();  // waits for the call
  EXPECT_EQ(state_.message_budget().num_used(), 0);
}

TEST_F(GenerateCallTest, AcceptedWorkIsAnsweredBeforeTheServerEnds) {
  Ready();
  fake_.engine->Hold(true);
  std::thread client([&] {
    ASSERT_OK_AND_ASSIGN(const auto messages, Generate(Request()));
    EXPECT_EQ(messages.size(), 1u);
  });
  fake_.engine->WaitForQueued(1);
  std::thread end([&] { ShutDown(); });
  fake_.engine->Hold(false);
  client.join();
  end.join();
}

TEST_F(GenerateCallTest, CancelsAtRandomMomentsLeaveNothingBehind) {
  Ready();
  v1::GenerateRequest request = Request();
  request.set_n(4);
  request.set_max_new_tokens(20);
  request.set_stream_tokens(true);
  for (int round = 0; round < 100; ++round) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse message;
    for (int i = 0; i < round % 7; ++i) reader->Read(&message);
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_OK(Generate(request));
  ShutDown();
  EXPECT_EQ(state_.message_budget().num_used(), 0);
}

}  // namespace
}  // namespace taopd::testing
