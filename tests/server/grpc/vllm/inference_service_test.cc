// vllm.Inference and vllm.Control with real sockets and an engine whose numbers are known.

#include <thread>

#include "proto/vllm/control.grpc.pb.h"
#include "proto/vllm/inference.grpc.pb.h"
#include "server/grpc/vllm/inference_request.h"
#include "tests/server/grpc/grpc_server_fixture.h"

namespace taopd::testing {
namespace {

class VllmServiceTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    GrpcServerFixture::SetUp();
    inference_ = vllm::Inference::NewStub(channel_);
    control_ = vllm::Control::NewStub(channel_);
  }
  static vllm::GenerateRequest Request() {
    vllm::GenerateRequest request;
    request.set_request_id("r");
    for (uint32_t id : {3, 5, 7, 2}) request.mutable_token_ids()->add_ids(id);
    request.mutable_stopping()->set_max_new_tokens(3);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_response()->set_output_token_ids(true);
    return request;
  }
  absl::StatusOr<vllm::GenerateResponse> Generate(const vllm::GenerateRequest& request) {
    grpc::ClientContext context;
    vllm::GenerateResponse response;
    TAOPD_RETURN_IF_ERROR(StatusOf(inference_->Generate(&context, request, &response)));
    return response;
  }

  std::unique_ptr<vllm::Inference::Stub> inference_;
  std::unique_ptr<vllm::Control::Stub> control_;
};

TEST_F(VllmServiceTest, PromptLogProbsAreFlatArrays) {
  Ready();
  vllm::GenerateRequest request = Request();
  request.mutable_response()->set_prompt_logprobs(true);
  request.mutable_response()->mutable_prompt_candidates()->set_top_n(2);
  ASSERT_OK_AND_ASSIGN(const vllm::GenerateResponse response, Generate(request));
  const ScoreRows rows = FakeScore({3, 5, 7, 2}, {.top_k = 2, .rank = true});
  const vllm::PromptInfo& info = response.prompt_info();
  ASSERT_EQ(info.logprobs_size(), 4);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(info.logprobs(r + 1), rows.sampled_log_probs[r]);
    EXPECT_EQ(info.ranks(r + 1), static_cast<uint32_t>(rows.sampled_ranks[r]));
    ASSERT_EQ(info.candidate_tokens(r + 1).tokens_size(), 2);
    EXPECT_EQ(info.candidate_tokens(r + 1).tokens(0).id(), static_cast<uint32_t>(rows.ids[2 * r]));
    EXPECT_EQ(info.candidate_tokens(r + 1).tokens(0).logprob(), rows.log_probs[2 * r]);
  }
  EXPECT_EQ(response.outputs().token_ids_size(), 3);
  EXPECT_EQ(response.outputs().finish_info().finish_reason(), vllm::LENGTH);
  EXPECT_EQ(response.outputs().text().size(), 3u);
}

TEST_F(VllmServiceTest, AStreamHoldsWhatTheUnaryAnswerHolds) {
  Ready();
  for (const bool prompt_logprobs : {false, true}) {
    vllm::GenerateRequest request = Request();
    request.mutable_response()->set_output_logprobs(true);
    request.mutable_response()->set_prompt_logprobs(prompt_logprobs);
    ASSERT_OK_AND_ASSIGN(const vllm::GenerateResponse whole, Generate(request));
    grpc::ClientContext context;
    ASSERT_OK_AND_ASSIGN(const auto messages,
                         ReadAll(inference_->GenerateStream(&context, request)));
    ASSERT_EQ(messages.size(), prompt_logprobs ? 2u : 4u);
    EXPECT_TRUE(messages[0].has_prompt_info());
    EXPECT_FALSE(messages[0].has_outputs());
    EXPECT_EQ(messages[0].prompt_info().SerializeAsString(),
              whole.prompt_info().SerializeAsString());
    vllm::SequenceOutput joined;
    for (size_t i = 1; i < messages.size(); ++i) {
      const vllm::SequenceOutput& piece = messages[i].outputs();
      EXPECT_EQ(piece.has_finish_info(), i + 1 == messages.size());
      joined.set_text(joined.text() + piece.text());
      joined.mutable_token_ids()->MergeFrom(piece.token_ids());
      joined.mutable_logprobs()->MergeFrom(piece.logprobs());
    }
    EXPECT_EQ(joined.text(), whole.outputs().text());
    EXPECT_THAT(joined.token_ids(), ElementsAreArray(whole.outputs().token_ids()));
    EXPECT_THAT(joined.logprobs(), ElementsAreArray(whole.outputs().logprobs()));
  }
}

TEST_F(VllmServiceTest, TextPromptsAndDefaultsReachTheEngine) {
  Ready();
  vllm::GenerateRequest request = Request();
  request.set_text("cab");
  ASSERT_OK(Generate(request));
  EXPECT_THAT(fake_.engine->seen().back().token_ids, ElementsAre(1, 2, 0, 1));
  // Without a temperature it is greedy; without a number of tokens, what the context leaves.
  request = Request();
  request.clear_stopping();
  ASSERT_OK(Generate(request));
  EXPECT_EQ(fake_.engine->seen().back().sampling->temperature, 0.0f);
  EXPECT_EQ(fake_.engine->seen().back().sampling->max_new_tokens, 60);
  request.mutable_kv()->set_bypass_prefix_cache(true);
  ASSERT_OK(Generate(request));
  const std::string first_salt = fake_.engine->seen().back().cache_salt;
  ASSERT_OK(Generate(request));
  EXPECT_NE(fake_.engine->seen().back().cache_salt, first_salt);
}

TEST_F(VllmServiceTest, WhatCannotBeHonoredIsRefusedByName) {
  Ready();
  using Edit = std::function<void(vllm::GenerateRequest*)>;
  const std::pair<std::string, Edit> cases[] = {
      {"prompt is required", [](auto* r) { r->clear_prompt(); }},
      {"num_sequences > 1 is not supported",
       [](auto* r) { r->mutable_sampling()->set_num_sequences(2); }},
      {"structured_output: the model has no tokenizer",
       [](auto* r) { r->mutable_decoding()->set_json("{}"); }},
      {"prompt_candidates token_ids selector",
       [](auto* r) { r->mutable_response()->mutable_prompt_candidates()->mutable_token_ids(); }},
      {"output_candidates asks for 9 tokens, the limit is max_logprobs 8",
       [](auto* r) { r->mutable_response()->mutable_output_candidates()->set_top_n(9); }},
      {"priority", [](auto* r) { r->set_priority(1); }},
      {"media", [](auto* r) { r->add_media(); }},
      {"lora_name", [](auto* r) { r->set_lora_name("x"); }},
      {"kv_transfer_params",
       [](auto* r) { (*r->mutable_kv()->mutable_kv_transfer_params()->mutable_fields())["a"]; }},
      {"temperature", [](auto* r) { r->set_temperature(-1.0f); }},
  };
  for (const auto& [text, edit] : cases) {
    vllm::GenerateRequest request = Request();
    edit(&request);
    EXPECT_ERROR(Generate(request), kInvalidArgument, text);
  }
  vllm::GenerateRequest request = Request();
  request.set_model("other");
  EXPECT_ERROR(Generate(request), kNotFound, "model `other` not found");
}

// Each sequence has a copy of the fields and of the stop strings.
TEST_F(VllmServiceTest, CopiesOfTheFieldsAreCounted) {
  Ready();
  vllm::GenerateRequest request = Request();
  request.set_temperature(0.5f);
  for (char c = 'a'; c < 'a' + 20; ++c)
    request.mutable_stopping()->add_stop_strings(std::string(1000, c));
  vllm::grpc::engine::SamplingParams gateway;
  gateway.set_n(8);
  const auto admitted =
      AdmitInference(request, /*streams=*/true, {.client = "client"}, state_, &gateway);
  ASSERT_OK(admitted);
  EXPECT_GT(state_.message_budget().num_used(), 8 * 20 * 1000);

  // An answer that is one message above gRPC's limit is refused before it is computed.
  fake_.model->limits.max_model_len = 1'000'000;
  request.mutable_stopping()->set_max_new_tokens(500'000);
  request.mutable_response()->mutable_output_candidates()->set_top_n(8);
  EXPECT_OK(AdmitInference(request, /*streams=*/true, {.client = "client"}, state_));
  EXPECT_ERROR(AdmitInference(request, /*streams=*/false, {.client = "client"}, state_),
               kInvalidArgument, "output_candidates for max_tokens 500000 may need a message of ");
}

// A client can abort its own requests and not those of another one.
TEST_F(VllmServiceTest, AbortEndsTheClientsRequestsOfAnId) {
  Ready();
  ASSERT_OK(state_.trusted_proxies().Add({"127.0.0.0/8", "::1"}));
  for (const bool is_own : {true, false}) {
    fake_.engine->Hold(true);
    std::thread call(
        [&] { EXPECT_EQ(Generate(Request()).status().code(), is_own ? kCancelled : kOk); });
    fake_.engine->WaitForQueued(1);
    vllm::AbortRequest abort;
    abort.add_request_ids("unknown");
    abort.add_request_ids("r");
    vllm::AbortResponse done;
    grpc::ClientContext context;
    if (!is_own) context.AddMetadata("x-forwarded-for", "192.0.2.7");
    EXPECT_OK(control_->Abort(&context, abort, &done));
    fake_.engine->Hold(false);
    call.join();
  }
}

TEST_F(VllmServiceTest, InfoSaysWhatIsServed) {
  vllm::ServerInfo server;
  vllm::ModelInfo model;
  grpc::ClientContext contexts[4];
  EXPECT_ERROR(control_->GetServerInfo(&contexts[3], {}, &server), kUnavailable, "");
  fake_.model->tensor_parallel_size = 4;
  Ready();
  ASSERT_OK(control_->GetServerInfo(&contexts[0], {}, &server));
  EXPECT_EQ(server.api_version(), "vllm");
  EXPECT_EQ(server.max_model_len(), 64u);
  EXPECT_EQ(server.max_running_requests(), 16u);
  EXPECT_EQ(server.parallelism().tensor_parallel_size(), 4u);
  ASSERT_OK(control_->GetModelInfo(&contexts[1], {}, &model));
  EXPECT_EQ(model.served_model_name(), "fake");
  EXPECT_TRUE(model.supports_text_input());
  vllm::GetWeightVersionResponse version;
  ASSERT_OK(control_->GetWeightVersion(&contexts[2], {}, &version));
  EXPECT_EQ(version.weight_version(), fake_.model->revision);
}

}  // namespace
}  // namespace taopd::testing
