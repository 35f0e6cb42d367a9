// vllm.grpc.engine.VllmEngine with real sockets and an engine whose numbers are known.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <thread>

#include "proto/vllm/engine.grpc.pb.h"
#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

namespace engine = vllm::grpc::engine;

class VllmEngineServiceTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    GrpcServerFixture::SetUp();
    gateway_ = engine::VllmEngine::NewStub(channel_);
  }
  static engine::GenerateRequest Request() {
    engine::GenerateRequest request;
    request.set_request_id("r");
    for (uint32_t id : {3, 5, 7, 2}) request.mutable_tokenized()->add_input_ids(id);
    request.mutable_sampling_params()->set_temperature(0.0f);
    request.mutable_sampling_params()->set_max_tokens(3);
    request.mutable_sampling_params()->set_ignore_eos(true);
    return request;
  }
  absl::StatusOr<std::vector<engine::GenerateResponse>> Generate(
      const engine::GenerateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return ReadAll(gateway_->Generate(&context, request));
  }
  // Expects one message as the answer to the request, and returns it.
  engine::GenerateComplete Complete(const engine::GenerateRequest& request) {
    const auto messages = Generate(request);
    EXPECT_OK(messages);
    if (!messages.ok()) return {};
    EXPECT_EQ(messages->size(), 1u);
    return messages->empty() ? engine::GenerateComplete() : messages->front().complete();
  }
  static std::vector<uint32_t> Greedy() {
    const std::vector<int32_t> ids = FakeGenerate(MakeGeneration({3, 5, 7, 2}, 3)).ids;
    return {ids.begin(), ids.end()};
  }

  std::unique_ptr<engine::VllmEngine::Stub> gateway_;
};

TEST_F(VllmEngineServiceTest, OneMessageHoldsTheWholeAnswer) {
  Ready();
  engine::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_logprobs(2);
  request.mutable_sampling_params()->set_prompt_logprobs(2);
  const engine::GenerateComplete complete = Complete(request);
  EXPECT_THAT(complete.output_ids(), ElementsAreArray(Greedy()));
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 4u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.matched_stop_case(), engine::GenerateComplete::MATCHED_STOP_NOT_SET);

  const ScoreRows rows = FakeScore({3, 5, 7, 2}, {.top_k = 2});
  const engine::InputLogProbs& input = complete.input_logprobs();
  EXPECT_THAT(input.token_ids(), ElementsAre(3, 5, 7, 2));
  ASSERT_EQ(input.token_logprobs_size(), 4);
  ASSERT_EQ(input.top_logprobs_size(), 4);
  EXPECT_FALSE(input.token_logprobs(0).has_value());
  EXPECT_EQ(input.top_logprobs(0).values_size(), 0);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(input.token_logprobs(r + 1).value(), rows.sampled_log_probs[r]);
    EXPECT_THAT(input.top_logprobs(r + 1).token_ids(),
                ElementsAre(rows.ids[2 * r], rows.ids[2 * r + 1]));
    EXPECT_THAT(input.top_logprobs(r + 1).values(),
                ElementsAre(rows.log_probs[2 * r], rows.log_probs[2 * r + 1]));
  }
  const engine::OutputLogProbs& output = complete.output_logprobs();
  EXPECT_THAT(output.token_ids(), ElementsAreArray(Greedy()));
  ASSERT_EQ(output.token_logprobs_size(), 3);
  ASSERT_EQ(output.top_logprobs_size(), 3);
  // Greedy: the token is the most probable id.
  EXPECT_EQ(output.top_logprobs(1).token_ids(0), output.token_ids(1));
  EXPECT_EQ(output.top_logprobs(1).values(0), output.token_logprobs(1));
  EXPECT_EQ(output.top_logprobs(1).values_size(), 2);
}

TEST_F(VllmEngineServiceTest, WithoutCandidatesThereAreTheTokensAlone) {
  Ready();
  engine::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_logprobs(0);
  request.mutable_sampling_params()->set_prompt_logprobs(0);
  engine::GenerateComplete complete = Complete(request);
  EXPECT_EQ(complete.output_logprobs().token_logprobs_size(), 3);
  EXPECT_EQ(complete.output_logprobs().top_logprobs_size(), 0);
  EXPECT_EQ(complete.input_logprobs().token_logprobs_size(), 4);
  EXPECT_EQ(complete.input_logprobs().top_logprobs_size(), 0);
  // A prompt of one token has no log-prob.
  request.mutable_tokenized()->mutable_input_ids()->Truncate(1);
  complete = Complete(request);
  ASSERT_EQ(complete.input_logprobs().token_logprobs_size(), 1);
  EXPECT_FALSE(complete.input_logprobs().token_logprobs(0).has_value());
  // None are asked for.
  complete = Complete(Request());
  EXPECT_FALSE(complete.has_output_logprobs());
  EXPECT_FALSE(complete.has_input_logprobs());
}

// As in vLLM, the complete message of a stream repeats the last chunk.
TEST_F(VllmEngineServiceTest, AStreamHasAChunkPerTokenAndACompleteMessagePerSequence) {
  Ready();
  engine::GenerateRequest request = Request();
  request.set_stream(true);
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_temperature(0.5f);
  request.mutable_sampling_params()->set_logprobs(1);
  request.mutable_sampling_params()->set_seed(-5);
  ASSERT_OK_AND_ASSIGN(const auto messages, Generate(request));
  std::map<uint32_t, std::vector<uint32_t>> ids;
  std::map<uint32_t, int> num_complete;
  for (const engine::GenerateResponse& message : messages) {
    if (message.has_chunk()) {
      const engine::GenerateStreamChunk& chunk = message.chunk();
      EXPECT_EQ(num_complete[chunk.index()], 0);
      EXPECT_EQ(chunk.completion_tokens(), 1u);
      EXPECT_EQ(chunk.prompt_tokens(), 4u);
      EXPECT_EQ(chunk.output_logprobs().top_logprobs_size(), 1);
      EXPECT_FALSE(chunk.has_input_logprobs());
      ids[chunk.index()].push_back(chunk.token_ids(0));
    } else {
      const engine::GenerateComplete& complete = message.complete();
      ++num_complete[complete.index()];
      EXPECT_THAT(complete.output_ids(), ElementsAre(ids[complete.index()].back()));
      EXPECT_EQ(complete.finish_reason(), "length");
    }
  }
  EXPECT_THAT(ids[0], ElementsAreArray(Greedy()));
  EXPECT_THAT(ids[1], ElementsAreArray(Greedy()));
  EXPECT_THAT(num_complete, ElementsAre(std::pair(0u, 1), std::pair(1u, 1)));
  const auto seen = fake_.engine->seen();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].sampling->seed, seen[0].sampling->seed + 1);
  EXPECT_EQ(seen[0].sampling->seed, static_cast<uint64_t>(int64_t{-5}));
}

TEST_F(VllmEngineServiceTest, PromptLogProbsAreInTheFirstChunkOfAStream) {
  Ready();
  engine::GenerateRequest request = Request();
  request.set_stream(true);
  request.mutable_sampling_params()->set_prompt_logprobs(1);
  ASSERT_OK_AND_ASSIGN(const auto messages, Generate(request));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0].chunk().token_ids(), ElementsAreArray(Greedy()));
  EXPECT_EQ(messages[0].chunk().input_logprobs().token_logprobs_size(), 4);
  EXPECT_FALSE(messages[1].complete().has_input_logprobs());
}

TEST_F(VllmEngineServiceTest, SaysWhatEndedASequence) {
  Ready();
  const std::vector<uint32_t> greedy = Greedy();
  engine::GenerateRequest request = Request();
  request.mutable_sampling_params()->add_stop_token_ids(greedy[1]);
  engine::GenerateComplete complete = Complete(request);
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.matched_token_id(), greedy[1]);
  EXPECT_EQ(complete.output_ids_size(), 2);
  request = Request();
  const std::string text = FakeTokenizer().TokenBytes(static_cast<int32_t>(greedy[0]));
  request.mutable_sampling_params()->add_stop(text);
  complete = Complete(request);
  EXPECT_EQ(complete.matched_stop_str(), text);
  EXPECT_EQ(complete.output_ids_size(), 1);
}

TEST_F(VllmEngineServiceTest, TextPromptsAndDefaultsReachTheEngine) {
  Ready();
  engine::GenerateRequest request = Request();
  request.set_text("cab");
  Complete(request);
  EXPECT_THAT(fake_.engine->seen().back().token_ids, ElementsAre(1, 2, 0, 1));
  // Without a temperature it is 1; without a number of tokens, what the context leaves.
  request = Request();
  request.mutable_sampling_params()->clear_temperature();
  request.mutable_sampling_params()->clear_max_tokens();
  Complete(request);
  EXPECT_EQ(fake_.engine->seen().back().sampling->temperature, 1.0f);
  EXPECT_EQ(fake_.engine->seen().back().sampling->max_new_tokens, 60);
  // A prompt that is cut to what fits leaves room for what is generated; the context has 64 tokens.
  request.mutable_sampling_params()->set_truncate_prompt_tokens(-1);
  request.mutable_sampling_params()->set_max_tokens(4);
  for (uint32_t i = 0; i < 80; ++i) request.mutable_tokenized()->add_input_ids(i % 7);
  Complete(request);
  EXPECT_EQ(fake_.engine->seen().back().token_ids.size(), 60u);
  // A constraint that is false is none.
  request = Request();
  request.mutable_sampling_params()->set_json_object(false);
  Complete(request);
  EXPECT_EQ(fake_.engine->seen().back().sampling->mask, nullptr);
}

TEST_F(VllmEngineServiceTest, WhatCannotBeHonoredIsRefusedByName) {
  Ready();
  using Edit = std::function<void(engine::GenerateRequest*)>;
  const std::pair<std::string, Edit> cases[] = {
      {"input is required", [](auto* r) { r->clear_input(); }},
      {"mm_inputs", [](auto* r) { r->mutable_mm_inputs(); }},
      {"kv_transfer_params ", [](auto* r) { r->mutable_kv_transfer_params(); }},
      {"kv_transfer_params_json", [](auto* r) { r->set_kv_transfer_params_json("{}"); }},
      {"data_parallel_rank", [](auto* r) { r->set_data_parallel_rank(1); }},
      {"truncate_prompt_tokens must be at least -1, got -2",
       [](auto* r) { r->mutable_sampling_params()->set_truncate_prompt_tokens(-2); }},
      {"structured_output", [](auto* r) { r->mutable_sampling_params()->set_json_schema("{}"); }},
      {"choice cannot be empty", [](auto* r) { r->mutable_sampling_params()->mutable_choice(); }},
      {"max_tokens must be at least 1",
       [](auto* r) { r->mutable_sampling_params()->set_max_tokens(0); }},
      {"prompt_logprobs with more than one sequence",
       [](auto* r) {
         r->mutable_sampling_params()->set_n(2);
         r->mutable_sampling_params()->set_prompt_logprobs(0);
       }},
      {"logprobs is -2", [](auto* r) { r->mutable_sampling_params()->set_logprobs(-2); }},
      {"asks for 9 tokens, the limit is max_logprobs 8",
       [](auto* r) { r->mutable_sampling_params()->set_prompt_logprobs(9); }},
      {"asks for 32 tokens", [](auto* r) { r->mutable_sampling_params()->set_logprobs(-1); }},
      {"logit_bias has the id -1",
       [](auto* r) { (*r->mutable_sampling_params()->mutable_logit_bias())[-1] = 1.0f; }},
      {"temperature", [](auto* r) { r->mutable_sampling_params()->set_temperature(-1.0f); }},
  };
  for (const auto& [text, edit] : cases) {
    engine::GenerateRequest request = Request();
    edit(&request);
    EXPECT_ERROR(Generate(request), kInvalidArgument, text);
  }
}

TEST_F(VllmEngineServiceTest, AbortEndsAllSequencesOfARequest) {
  Ready();
  fake_.engine->Hold(true);
  std::thread call([&] {
    engine::GenerateRequest request = Request();
    request.mutable_sampling_params()->set_n(3);
    request.mutable_sampling_params()->set_temperature(0.5f);
    EXPECT_EQ(Generate(request).status().code(), kCancelled);
  });
  fake_.engine->WaitForQueued(3);
  engine::AbortRequest abort;
  abort.add_request_ids("unknown");
  abort.add_request_ids("r");
  engine::AbortResponse done;
  grpc::ClientContext context;
  EXPECT_OK(gateway_->Abort(&context, abort, &done));
  call.join();
}

TEST_F(VllmEngineServiceTest, AGatewayLearnsWhatIsServed) {
  engine::HealthCheckResponse health;
  grpc::ClientContext contexts[6];
  ASSERT_OK(gateway_->HealthCheck(&contexts[0], {}, &health));
  EXPECT_FALSE(health.healthy());
  EXPECT_FALSE(health.message().empty());
  engine::GetModelInfoResponse model;
  EXPECT_ERROR(gateway_->GetModelInfo(&contexts[1], {}, &model), kUnavailable, "");
  fake_.model->model_config_json =
      R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"eos_token_id":[2,7],"bos_token_id":1})";
  fake_.model->sampling_defaults.temperature = 0.5f;
  fake_.engine->SetStats({.num_running = 2, .kv_blocks_in_use = 1, .num_kv_blocks = 4});
  Ready();
  ASSERT_OK(gateway_->HealthCheck(&contexts[2], {}, &health));
  EXPECT_TRUE(health.healthy()) << health.message();
  ASSERT_OK(gateway_->GetModelInfo(&contexts[3], {}, &model));
  EXPECT_EQ(model.model_path(), "/models/fake");
  EXPECT_EQ(model.tokenizer_path(), "/models/fake");
  EXPECT_EQ(model.served_model_name(), "fake");
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.max_context_length(), 64u);
  EXPECT_EQ(model.vocab_size(), 32u);
  EXPECT_EQ(model.model_type(), "llama");
  EXPECT_THAT(model.architectures(), ElementsAre("LlamaForCausalLM"));
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(2, 7));
  EXPECT_EQ(model.bos_token_id(), 1);
  EXPECT_EQ(model.pad_token_id(), 0);
  EXPECT_EQ(model.default_sampling_params_json(), "{\"temperature\":0.5}");
  engine::GetServerInfoResponse server;
  ASSERT_OK(gateway_->GetServerInfo(&contexts[4], {}, &server));
  EXPECT_EQ(server.server_type(), "vllm-grpc");
  EXPECT_EQ(server.active_requests(), 2u);
  EXPECT_EQ(server.data_parallel_size(), 1);
  engine::GetLoadsResponse loads;
  ASSERT_OK(gateway_->GetLoads(&contexts[5], {}, &loads));
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 2);
  EXPECT_EQ(loads.loads(0).token_usage(), 0.25);
  EXPECT_EQ(loads.loads(0).max_running_requests(), 16);
}

}  // namespace
}  // namespace taopd::testing
