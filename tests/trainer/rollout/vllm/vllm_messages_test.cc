// The replies are those of a real vLLM (golden/record_replies.py).
#include "trainer/rollout/vllm/vllm_messages.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::json;

Json Recorded(const std::string& name) {
  static const Json* const kReplies =
      new Json(Json::parse(ReadFile(SourcePath("tests/trainer/rollout/vllm/golden/replies.json"))));
  return kReplies->at(name);
}

RolloutNeeds Needs() {
  return {.vocab_size = 275, .max_model_len = 200, .dtype = "float32", .eos_token_ids = {273, 274}};
}

RolloutRequest FourTokens(int32_t num_top_ids) {
  RolloutRequest request = {.prompt_ids = {257, 32, 99, 97, 116}};
  request.sampling.max_new_tokens = 4;
  request.sampling.num_log_probs = num_top_ids;
  return request;
}

absl::StatusOr<WorkerRollout> ParseChanged(const std::function<void(Json& choice)>& change) {
  Json reply = Recorded("length");
  change(reply["choices"][0]);
  return ParseVllmRollout(reply.dump(), FourTokens(2), Needs());
}

TEST(VllmMessagesTest, ReadsTheSettingsOfARealServer) {
  ASSERT_OK_AND_ASSIGN(const VllmServerInfo info,
                       ParseVllmServerInfo(Recorded("server_info").dump()));
  EXPECT_EQ(info.logprobs_mode, "raw_logprobs");
  EXPECT_EQ(info.max_logprobs, 20);
  EXPECT_EQ(info.max_model_len, 256);
  EXPECT_EQ(info.dtype, "float32");
  EXPECT_EQ(info.load_format, "auto");
  EXPECT_TRUE(info.is_on_cpu);
  EXPECT_FALSE(info.unties_head);
  EXPECT_ERROR(ParseVllmServerInfo(R"({"vllm_config": {}})"), kDataLoss, "logprobs_mode");
}

TEST(VllmMessagesTest, ReadsARealResponse) {
  const Json recorded = Recorded("length");
  ASSERT_OK_AND_ASSIGN(const WorkerRollout rollout,
                       ParseVllmRollout(recorded.dump(), FourTokens(2), Needs()));
  EXPECT_EQ(rollout.finish, FinishReason::kLength);
  EXPECT_EQ(rollout.version, "default");
  ASSERT_EQ(rollout.response_ids.size(), 4);
  ASSERT_EQ(rollout.top_ids.size(), 8);
  const Json& content = recorded["choices"][0]["logprobs"]["content"];
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(content[i]["token_id"], rollout.response_ids[i]);
    EXPECT_EQ(content[i]["logprob"].get<float>(), rollout.behavior_log_probs[i]);
    // The ranks are vLLM's own.
    for (const Json& each : content[i]["top_logprobs"]) {
      const int64_t rank = each["rank"];
      if (rank > 2) continue;
      EXPECT_EQ(each["token_id"], rollout.top_ids[i * 2 + rank - 1]) << i;
    }
  }
}

TEST(VllmMessagesTest, ReadsTheEndOfASequence) {
  const Json recorded = Recorded("stop");
  RolloutNeeds needs = Needs();
  RolloutRequest request = FourTokens(0);
  request.sampling.max_new_tokens = 40;
  EXPECT_ERROR(ParseVllmRollout(recorded.dump(), request, needs), kDataLoss,
               "which ends no sequence of the student");
  const Json& ids = recorded["choices"][0]["token_ids"];
  needs.eos_token_ids = {ids.back().get<int32_t>()};
  ASSERT_OK_AND_ASSIGN(const WorkerRollout rollout,
                       ParseVllmRollout(recorded.dump(), request, needs));
  EXPECT_EQ(rollout.finish, FinishReason::kStop);
  EXPECT_EQ(rollout.response_ids, ids.get<std::vector<int32_t>>());
  EXPECT_TRUE(rollout.top_ids.empty());
}

TEST(VllmMessagesTest, ReadsTheProbe) {
  const std::vector<int32_t> ids = {257, 32, 99, 97, 116};
  ASSERT_OK_AND_ASSIGN(const std::vector<float> log_probs,
                       ParseVllmProbe(Recorded("probe").dump(), ids));
  ASSERT_EQ(log_probs.size(), 4);
  EXPECT_EQ(log_probs[0], Recorded("probe")["prompt_logprobs"][1]["32"]["logprob"].get<float>());
  // Another model's are others.
  ASSERT_OK_AND_ASSIGN(const std::vector<float> second,
                       ParseVllmProbe(Recorded("second_probe").dump(), ids));
  EXPECT_NE(log_probs, second);
  EXPECT_ERROR(ParseVllmProbe(Recorded("probe").dump(), {257, 32, 99, 97, 117}), kDataLoss,
               "prompt_logprobs has a logprob that is not a number");
  EXPECT_ERROR(ParseVllmProbe(Recorded("probe").dump(), {257, 32}), kDataLoss,
               "one entry for each token");
}

TEST(VllmMessagesTest, AsksForTheStudentsDistributionAndEnds) {
  RolloutRequest request = FourTokens(3);
  request.sampling.temperature = 0.5f;
  request.sampling.top_p = 0.75f;
  request.sampling.top_k = 9;
  request.sampling.seed = ~uint64_t{0};
  const Json body = Json::parse(VllmGenerateBody(request, Needs(), "m"));
  EXPECT_EQ(body["token_ids"], Json(request.prompt_ids));
  const Json& sampling = body["sampling_params"];
  EXPECT_EQ(sampling["max_tokens"], 4);
  EXPECT_EQ(sampling["temperature"], 0.5);
  EXPECT_EQ(sampling["top_p"], 0.75);
  EXPECT_EQ(sampling["top_k"], 9);
  EXPECT_EQ(sampling["logprobs"], 3);
  EXPECT_EQ(sampling["seed"], INT64_MAX);  // vLLM refuses larger ones
  EXPECT_EQ(sampling["ignore_eos"], true);
  EXPECT_EQ(sampling["stop_token_ids"], Json({273, 274}));
}

TEST(VllmMessagesTest, WhatAReplyLacksOrContradictsIsNamed) {
  const auto set = [](std::vector<std::string> path, Json value) {
    return [path, value](Json& choice) {
      Json* at = &choice;
      for (const std::string& key : path)
        at = at->is_array() ? &(*at)[std::stoi(key)] : &(*at)[key];
      *at = value;
    };
  };
  const std::vector<std::tuple<std::function<void(Json&)>, absl::StatusCode, std::string>> cases = {
      {set({"finish_reason"}, "abort"), kAborted, "dropped the sequence"},
      {set({"finish_reason"}, "error"), kDataLoss, "finish_reason is \"error\""},
      {set({"token_ids"}, {1, 2, 3}), kDataLoss, "after 3 of 4 tokens"},
      {set({"token_ids"}, {1, 2, 3, 4, 5}), kDataLoss, "a list of 1 to 4 ids"},
      {set({"token_ids", "1"}, 275), kDataLoss, "in [0, 275)"},
      {set({"token_ids", "1"}, -1), kDataLoss, "in [0, 275)"},
      {set({"token_ids", "1"}, 0), kDataLoss, "another token than token_ids at 1"},
      {set({"logprobs"}, nullptr), kDataLoss, "one entry for each token"},
      {set({"logprobs", "content", "2", "logprob"}, nullptr), kDataLoss,
       "not a number in (-9999, 0]: null"},
      {set({"logprobs", "content", "2", "logprob"}, -9999.0), kDataLoss,
       "not a number in (-9999, 0]: -9999"},
      {set({"logprobs", "content", "2", "logprob"}, 1.5), kDataLoss,
       "not a number in (-9999, 0]: 1.5"},
      {set({"logprobs", "content", "2", "top_logprobs"}, Json::array()), kDataLoss,
       "top_logprobs does not have 2 entries"},
      {set({"weight_versions"}, nullptr), kDataLoss, "no weight_versions"},
      {set({"weight_versions", "0", "end"}, 3), kDataLoss, "of all tokens"},
      {set({"weight_versions"}, {{{"version", "a"}, {"start", 0}, {"end", 2}},
                                 {{"version", "b"}, {"start", 2}, {"end", 4}}}),
       kAborted, "two versions"},
  };
  for (const auto& [change, code, words] : cases) EXPECT_ERROR(ParseChanged(change), code, words);
  std::string text = Recorded("length").dump();
  text.resize(text.size() - 9);
  EXPECT_ERROR(ParseVllmRollout(text, FourTokens(2), Needs()), kDataLoss, "");
  // A server that writes NaN, which is no JSON.
  const size_t at = text.find("\"logprob\":");
  const std::string nan =
      text.substr(0, at) + "\"logprob\":NaN" + text.substr(text.find(',', at)) + "}]}";
  EXPECT_ERROR(ParseVllmRollout(nan, FourTokens(2), Needs()), kDataLoss, "");
}

TEST(VllmMessagesTest, RefusesWhatVllmCannotGive) {
  struct Case {
    std::function<void(VllmServerInfo&, RolloutNeeds&)> change;
    std::string words;  // empty: it is accepted
  };
  const std::vector<Case> cases = {
      {[](auto&, auto&) {}, ""},
      {[](auto&, auto& needs) { needs.has_adapters = true; }, "student.lora"},
      {[](auto&, auto& needs) { needs.max_model_len = 257; }, "--max-model-len 256 is below"},
      {[](auto&, auto& needs) { needs.sampling.num_log_probs = 21; }, "--max-logprobs 20 is below"},
      {[](auto& info, auto& needs) { needs.sampling.num_log_probs = 21, info.max_logprobs = -1; },
       ""},
      {[](auto& info, auto&) { info.logprobs_mode = "raw_logits"; }, "reports no log-probs"},
      // Raw log-probs are those before truncation, but at temperature 1.
      {[](auto&, auto& needs) { needs.sampling.top_p = 0.9f; }, ""},
      {[](auto&, auto& needs) { needs.sampling.top_k = 5; }, ""},
      {[](auto&, auto& needs) { needs.sampling.temperature = 0.7f; }, "use processed_logprobs"},
      // Processed ones are at the sampling temperature, but after truncation.
      {[](auto& info, auto& needs) {
         info.logprobs_mode = "processed_logprobs", needs.sampling.temperature = 0.7f;
       },
       ""},
      {[](auto& info, auto& needs) {
         info.logprobs_mode = "processed_logprobs", needs.sampling.top_p = 0.9f;
       },
       "rollout.top_p = 0.9"},
      {[](auto& info, auto& needs) {
         info.logprobs_mode = "processed_logprobs", needs.sampling.top_k = 5;
       },
       "rollout.top_k = 5"},
      {[](auto&, auto& needs) { needs.has_tied_head = true; }, "tied to its embedding"},
      {[](auto& info, auto& needs) { needs.has_tied_head = info.unties_head = true; }, ""},
      {[](auto& info, auto& needs) { needs.has_tied_head = true, info.is_on_cpu = false; }, ""},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_OK_AND_ASSIGN(VllmServerInfo info, ParseVllmServerInfo(Recorded("server_info").dump()));
    RolloutNeeds needs = Needs();
    cases[i].change(info, needs);
    const absl::Status status = CheckVllmServesRollouts(info, needs);
    if (cases[i].words.empty()) {
      EXPECT_OK(status);
    } else {
      EXPECT_ERROR(status, kInvalidArgument, cases[i].words);
    }
  }
}

}  // namespace
}  // namespace taopd::testing
