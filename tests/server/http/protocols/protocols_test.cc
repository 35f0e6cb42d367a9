// Tests of the protocols besides vLLM's completions and chats, without sockets.
#include <absl/strings/escaping.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "server/http/protocols/protocols.h"
#include "server/http/routes/tokenize.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> Decode(const json& base64) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(base64.get<std::string>(), &bytes));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class ProtocolsTest : public ProtocolTest {
 protected:
  // Returns the fake engine's log-prob.
  static float LogProb(const std::vector<int32_t>& ids, size_t position, int32_t id) {
    return static_cast<float>(FakeLogProbs(ids, position, 1.0)[id]);
  }
  static int32_t Top(const std::vector<int32_t>& ids, size_t position, size_t rank) {
    return FakeOrder(FakeLogProbs(ids, position, 1.0))[rank];
  }

  const std::vector<int32_t> ids_ = {3, 1, 4, 31};  // the last one has probability 0
};

TEST_F(ProtocolsTest, CompactPromptLogprobsAreThoseOfTheObjects) {
  const json body = {{"prompt", ids_},
                     {"max_tokens", 1},
                     {"prompt_logprobs", 2},
                     {"prompt_logprobs_start", 2},
                     {"prompt_logprob_token_ids", {5, -1}}};
  json compact_body = body;
  compact_body["prompt_logprobs_format"] = "base64";
  const json choice = Ask(RunCompletion, compact_body)["choices"][0];
  const json& compact = choice["prompt_logprobs"];
  EXPECT_FALSE(choice.contains("prompt_token_id_logprobs"));
  EXPECT_EQ(compact["start"], 2);
  EXPECT_EQ(compact["shape"], json({2, 2}));
  EXPECT_EQ(compact["candidates_shape"], json({2, 2}));
  const auto ids = Decode<int32_t>(compact["token_ids"]);
  const auto log_probs = Decode<float>(compact["logprobs"]);
  const auto tails = Decode<float>(compact["tail_logprobs"]);
  const auto sampled = Decode<float>(compact["sampled_logprobs"]);
  const auto ranks = Decode<int32_t>(compact["sampled_ranks"]);
  const auto candidates = Decode<float>(compact["candidate_logprobs"]);
  const json plain = Ask(RunCompletion, body)["choices"][0];
  ASSERT_EQ(plain["prompt_logprobs"].size(), 4u);
  EXPECT_TRUE(plain["prompt_logprobs"][1].is_null());
  for (size_t r = 0; r < 2; ++r) {
    const size_t t = 2 + r;
    const json& objects = plain["prompt_logprobs"][t];
    for (size_t j = 0; j < 2; ++j) {
      EXPECT_EQ(ids[2 * r + j], Top(ids_, t, j));
      EXPECT_EQ(log_probs[2 * r + j],
                objects[std::to_string(ids[2 * r + j])]["logprob"].get<float>());
    }
    EXPECT_EQ(sampled[r], LogProb(ids_, t, ids_[t]));
    EXPECT_EQ(ranks[r], objects[std::to_string(ids_[t])]["rank"].get<int>());
    EXPECT_NEAR(std::exp(log_probs[2 * r]) + std::exp(log_probs[2 * r + 1]) + std::exp(tails[r]), 1,
                1e-5);
    EXPECT_EQ(candidates[2 * r], LogProb(ids_, t, 5));
    EXPECT_EQ(candidates[2 * r + 1], kMinusInf);
    EXPECT_EQ(plain["prompt_token_id_logprobs"][t][0].get<float>(), candidates[2 * r]);
    EXPECT_EQ(plain["prompt_token_id_logprobs"][t][1].get<double>(), -9999.0);
  }
  EXPECT_EQ(sampled[1], kMinusInf);
  EXPECT_TRUE(plain["prompt_token_id_logprobs"][0].is_null());
}

TEST_F(ProtocolsTest, TokensInTokensOut) {
  fake_.model->weight_version = "step-100";
  const json body = {{"token_ids", ids_},
                     {"return_token_ids", true},
                     {"request_id", "r"},
                     {"sampling_params",
                      {{"max_tokens", 2},
                       {"temperature", 0},
                       {"logprobs", 2},
                       {"prompt_logprobs", 1},
                       {"ignore_eos", true}}}};
  const json answer = Ask(RunTokenGeneration, body);
  EXPECT_EQ(answer["request_id"], "generate-tokens-r");
  EXPECT_EQ(answer["output_mode"], "tokens");
  EXPECT_EQ(answer["prompt_token_ids"], json(ids_));
  EXPECT_EQ(answer["prompt_logprobs"].size(), 4u);
  const json& choice = answer["choices"][0];
  EXPECT_FALSE(choice.contains("text"));
  EXPECT_EQ(choice["weight_versions"][0]["version"], "step-100");
  EXPECT_EQ(choice["weight_versions"][0]["end"], 2);
  const json& entry = choice["logprobs"]["content"][0];
  EXPECT_EQ(entry["token_id"], Top(ids_, 4, 0));
  EXPECT_EQ(entry["rank"], 1);
  EXPECT_EQ(entry["top_logprobs"][1]["token_id"], Top(ids_, 4, 1));
  json text = body;
  text["output_mode"] = "text";
  text["sampling_params"]["detokenize"] = true;
  EXPECT_EQ(Ask(RunTokenGeneration, text)["choices"][0]["text"].get<std::string>().size(), 2u);
  json stream = body;
  stream["stream_options"] = {{"include_usage", true}};
  stream["sampling_params"].erase("prompt_logprobs");
  const std::vector<json> events = Events(RunTokenGeneration, stream);
  json generated = json::array();
  for (const json& event : events) {
    if (event["choices"].empty()) continue;
    for (const json& id : event["choices"][0]["token_ids"]) generated.push_back(id);
  }
  EXPECT_EQ(generated, choice["token_ids"]);
  EXPECT_EQ(events[0]["prompt_token_ids"], json(ids_));
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 2);
}

TEST_F(ProtocolsTest, TokensWithoutMaxTokensFillTheContext) {
  const json answer =
      Ask(RunTokenGeneration, {{"token_ids", {3}}, {"sampling_params", {{"ignore_eos", true}}}});
  EXPECT_EQ(answer["choices"][0]["token_ids"].size(), 63u);
}

TEST_F(ProtocolsTest, ChosenIdsOfARowComeAsANumPyFile) {
  const json answer =
      Ask(RunTokenGeneration, {{"token_ids", ids_},
                               {"sampling_params",
                                {{"max_tokens", 1},
                                 {"prompt_logprob_start", 1},
                                 {"prompt_logprob_token_ids", {{5, 6}, {7, -1}}}}}});
  std::string file;
  ASSERT_TRUE(absl::Base64Unescape(answer["prompt_token_id_logprobs"].get<std::string>(), &file));
  EXPECT_EQ(file.substr(0, 6), "\x93NUMPY");
  EXPECT_THAT(file, HasSubstr("'shape': (2, 2)"));
  EXPECT_EQ((file.size() - 4 * sizeof(float)) % 64, 0u);
  float values[4];
  std::memcpy(values, file.data() + file.size() - sizeof(values), sizeof(values));
  EXPECT_EQ(values[0], LogProb(ids_, 2, 5));  // row 1 predicts token 2
  EXPECT_EQ(values[1], LogProb(ids_, 2, 6));
  EXPECT_EQ(values[2], LogProb(ids_, 3, 7));
  EXPECT_EQ(values[3], kMinusInf);
}

TEST_F(ProtocolsTest, ListsOfChosenIdsBeginWhereTheRequestSays) {
  json params = {{"prompt_logprobs", 1},
                 {"prompt_logprobs_start", 3},
                 {"prompt_logprob_token_ids", json::parse("[[5]]")}};
  const auto body = [&] { return json{{"token_ids", ids_}, {"sampling_params", params}}; };
  const json rows = Ask(RunTokenGeneration, body())["prompt_logprobs"];
  EXPECT_TRUE(rows[2].is_null() && rows[3].is_object()) << rows;
  params["prompt_logprob_start"] = INT64_MAX;
  EXPECT_EQ(Refused(RunTokenGeneration, body()).param, "prompt_logprob_start");  // two beginnings
  params.erase("prompt_logprobs_start");
  EXPECT_THAT(Refused(RunTokenGeneration, body()).message, HasSubstr("is beyond a prompt of 4"));
}

TEST_F(ProtocolsTest, AStreamIsRefusedWithTheFieldsThatItDoesNotReport) {
  const json echo = {
      {"prompt", ids_}, {"echo", true}, {"logprobs", 0}, {"prompt_logprobs_start", 3}};
  const json values = Events(RunCompletion, echo)[0]["choices"][0]["logprobs"]["token_logprobs"];
  EXPECT_TRUE(values[2].is_null() && values[3].is_number()) << values;
  const json fields = {{"prompt_logprobs_start", 2},
                       {"prompt_logprob_token_ids", {5, 6}},
                       {"prompt_logprobs_format", "base64"},
                       {"prompt_logprobs", 5}};
  for (const auto& [name, value] : fields.items()) {
    json params = {{"prompt_logprobs", 0}};
    params[name] = value;
    const json body = {{"token_ids", ids_}, {"sampling_params", params}, {"stream", true}};
    EXPECT_EQ(Refused(RunTokenGeneration, body).param, name);
    params.update({{"prompt", ids_}, {"stream", true}});
    EXPECT_EQ(Refused(RunCompletion, params).param, name);
  }
}

TEST_F(ProtocolsTest, TokenRequestsAreChecked) {
  const auto refused = [&](const json& body) { return Refused(RunTokenGeneration, body); };
  const json params = json::object();
  EXPECT_EQ(refused({{"sampling_params", params}}).param, "body.token_ids");
  EXPECT_EQ(refused({{"token_ids", {1}}}).param, "body.sampling_params");
  EXPECT_EQ(refused({{"token_ids", json::array()}, {"sampling_params", params}}).param,
            "body.token_ids");
  EXPECT_EQ(refused({{"token_ids", {1}}, {"sampling_params", {{"temperature", "x"}}}}).param,
            "body.sampling_params.temperature");
  EXPECT_EQ(refused({{"token_ids", {1}}, {"sampling_params", {{"max_tokens", 0}}}}).param,
            "max_tokens");
  EXPECT_EQ(
      refused({{"token_ids", {1}}, {"sampling_params", {{"stop", "a"}, {"detokenize", false}}}})
          .param,
      "stop");
  EXPECT_EQ(refused({{"token_ids", {1}}, {"sampling_params", params}, {"model", "x"}}).status, 404);
}

TEST_F(ProtocolsTest, SglangScoresWithoutGenerating) {
  fake_.model->weight_version = "step-100";
  const json body = {{"input_ids", ids_},
                     {"return_logprob", true},
                     {"logprob_start_len", 1},
                     {"top_logprobs_num", 2},
                     {"token_ids_logprob", {5, -1}},
                     {"sampling_params", {{"max_new_tokens", 0}, {"temperature", 0.5}}}};
  const json answer = Ask(RunSglang, body);
  EXPECT_EQ(answer["output_ids"], json::array());
  const json& meta = answer["meta_info"];
  EXPECT_EQ(meta["finish_reason"], json({{"type", "length"}, {"length", 0}}));
  EXPECT_EQ(meta["completion_tokens"], 0);
  EXPECT_EQ(meta["weight_version"], "step-100");
  const json& tokens = meta["input_token_logprobs"];
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0], json({nullptr, ids_[1], nullptr}));
  EXPECT_EQ(tokens[1][0].get<float>(), LogProb(ids_, 2, ids_[2]));  // at temperature 1
  EXPECT_EQ(tokens[1][1], ids_[2]);
  EXPECT_TRUE(meta["input_top_logprobs"][0].is_null());
  EXPECT_EQ(meta["input_top_logprobs"].size(), 3u);
  EXPECT_EQ(meta["input_top_logprobs"][1][1][1], Top(ids_, 2, 1));
  EXPECT_EQ(meta["input_token_ids_logprobs"][2][0][0].get<float>(), LogProb(ids_, 3, 5));
  EXPECT_EQ(meta["input_token_ids_logprobs"][2][1], json({-9999.0, -1, nullptr}));  // padding
  EXPECT_FALSE(fake_.engine->seen().back().sampling.has_value());
  json flat = body;
  flat["return_flat_raw_top_logprobs"] = true;
  const json numbers = Ask(RunSglang, flat)["meta_info"];
  EXPECT_FALSE(numbers.contains("input_top_logprobs"));
  EXPECT_EQ(numbers["input_top_logprobs_shape"], json({2, 2}));
  EXPECT_EQ(numbers["input_top_logprobs_null_prefix"], 1);
  EXPECT_EQ(numbers["input_top_logprobs_val_flat"][3], meta["input_top_logprobs"][2][1][0]);
  flat["return_flat_raw_top_logprobs_b64"] = true;
  const json packed = Ask(RunSglang, flat)["meta_info"];
  EXPECT_EQ(Decode<int32_t>(packed["input_top_logprobs_idx_flat_b64"])[3], Top(ids_, 3, 1));
  EXPECT_EQ(Decode<float>(packed["input_top_logprobs_val_flat_b64"])[0],
            LogProb(ids_, 2, Top(ids_, 2, 0)));
}

TEST_F(ProtocolsTest, SglangGeneratesAndStreams) {
  json body = {
      {"input_ids", {{3}, {4}}},
      {"return_logprob", true},
      {"sampling_params", {{"max_new_tokens", 3}, {"temperature", 0}, {"ignore_eos", true}}}};
  const json answers = Ask(RunSglang, body);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1]["output_ids"].size(), 3u);
  EXPECT_EQ(answers[1]["meta_info"]["output_token_logprobs"].size(), 3u);
  EXPECT_EQ(answers[0]["meta_info"]["input_token_logprobs"], json({{nullptr, 3, nullptr}}));
  body["input_ids"] = {3};
  const std::vector<json> events = Events(RunSglang, body);
  EXPECT_EQ(events.back()["output_ids"], answers[0]["output_ids"]);
  EXPECT_EQ(events.back()["text"], answers[0]["text"]);
  EXPECT_EQ(events.back()["meta_info"]["finish_reason"]["type"], "length");
}

TEST_F(ProtocolsTest, SglangsOwnNamesWinOverTheSharedOnes) {
  json params = {{"seed", 7}, {"min_tokens", 2}};
  for (const bool has_own : {false, true}) {
    Ask(RunSglang, {{"input_ids", {3}}, {"sampling_params", params}});
    const SamplingParams seen = *fake_.engine->seen().back().sampling;
    EXPECT_EQ(seen.seed, has_own ? 8u : 7u);
    EXPECT_EQ(seen.min_tokens, has_own ? 3 : 2);
    params.update({{"sampling_seed", 8}, {"min_new_tokens", 3}});
  }
}

TEST_F(ProtocolsTest, SglangRequestsAreChecked) {
  const auto refused = [&](const json& body) { return Refused(RunSglang, body); };
  EXPECT_THAT(refused(json::object()).message, HasSubstr("Either text or input_ids"));
  EXPECT_EQ(refused({{"input_ids", {1}}, {"logprob_start_len", 1}}).param, "logprob_start_len");
  EXPECT_EQ(refused({{"input_ids", {{1}, {2}}}, {"logprob_start_len", {0}}}).param,
            "logprob_start_len");
  EXPECT_EQ(refused({{"input_ids", {1}}, {"token_ids_logprob", {{1}}}}).param, "token_ids_logprob");
  EXPECT_EQ(refused({{"input_ids", {1}}, {"sampling_params", {{"max_new_tokens", -1}}}}).param,
            "max_new_tokens");
  EXPECT_EQ(
      refused({{"input_ids", {1}}, {"sampling_params", {{"custom_params", {{"a", 1}}}}}}).param,
      "custom_params");
  // The form of a text needs a tokenizer.
  EXPECT_EQ(refused({{"input_ids", {1}}, {"sampling_params", {{"regex", "a"}}}}).param, "regex");
  EXPECT_EQ(
      refused({{"input_ids", {1}}, {"sampling_params", {{"regex", "a"}, {"ebnf", "b"}}}}).param,
      "ebnf");
  EXPECT_EQ(refused({{"input_ids", {1}}, {"lora_path", "x"}}).param, "lora_path");
}

TEST_F(ProtocolsTest, TrlScoresCompletions) {
  json body = {{"sequences", {ids_, {7, 8}}}, {"prompt_lengths", {2, 0}}, {"top_logprobs", 1}};
  const json nested = Ask(RunSequenceLogprobs, body);
  ASSERT_EQ(nested["logprobs"][0].size(), 2u);
  EXPECT_EQ(nested["logprob_token_ids"][0][0][0], Top(ids_, 2, 0));
  EXPECT_EQ(nested["logprobs"][1][0], json::array());  // nothing precedes the first token
  EXPECT_EQ(nested["logprobs"][1].size(), 2u);
  body["response_format"] = "binary";
  const json binary = Ask(RunSequenceLogprobs, body);
  EXPECT_EQ(binary["shape"], json({2, 2, 1}));
  EXPECT_EQ(binary["completion_lengths"], json({2, 2}));
  const auto actual = Decode<float>(binary["actual_logprobs_b64"]);
  const auto actual_ids = Decode<int32_t>(binary["actual_token_ids_b64"]);
  EXPECT_EQ(actual[0], LogProb(ids_, 2, ids_[2]));
  EXPECT_EQ(actual_ids[1], ids_[3]);
  EXPECT_EQ(actual[1], kMinusInf);
  EXPECT_EQ(actual[2], kMinusInf);
  EXPECT_EQ(actual[3], LogProb({7, 8}, 1, 8));
  EXPECT_EQ(Decode<int32_t>(binary["token_ids_b64"])[1], Top(ids_, 3, 0));
  const auto refused = [&](const json& fields) { return Refused(RunSequenceLogprobs, fields); };
  EXPECT_EQ(refused({{"sequences", {{1}}}, {"prompt_lengths", json::array()}}).param,
            "prompt_lengths");
  EXPECT_EQ(refused({{"sequences", {{1}}}, {"prompt_lengths", {2}}}).param, "prompt_lengths");
  EXPECT_EQ(refused({{"prompt_lengths", {2}}}).param, "body.sequences");
}

// Each token is a MiB of characters that JSON writes as \u0001.
class LongTokenizer final : public FakeTokenizer {
 public:
  std::string TokenBytes(int32_t) const override { return std::string(1 << 20, '\x01'); }
};

TEST_F(ProtocolsTest, TheMemoryOfATextIsThatOfItsTokens) {
  fake_.model->tokenizer = std::make_unique<LongTokenizer>();
  ByteBudget::Reservation held;
  Caller caller;
  caller.hold_memory = [&held](ByteBudget::Reservation memory) { held = std::move(memory); };
  ASSERT_OK(RunDetokenize(R"({"tokens":[1,2,1]})", caller, state_));
  EXPECT_GE(state_.message_budget().num_used(), (3 * 3 * 6) << 20);
  const json ids = {{"tokens", std::vector<int>(50, 1)}};
  EXPECT_THAT(Refused(RunDetokenize, ids).message, HasSubstr("bytes, more than 268435456"));
  const json text = {{"prompt", std::string(50, 'b')}, {"return_token_strs", true}};
  EXPECT_EQ(Refused(RunTokenize, text).status, 400);
}

TEST_F(ProtocolsTest, TokenizesAndDetokenizes) {
  EXPECT_EQ(Ask(RunTokenize, {{"prompt", "bc"}, {"return_token_strs", true}}),
            json({{"count", 3},
                  {"max_model_len", 64},
                  {"tokens", {1, 1, 2}},
                  {"token_strs", {"b", "b", "c"}}}));
  EXPECT_EQ(Ask(RunTokenize, {{"prompt", "bc"}, {"add_special_tokens", false}})["tokens"],
            json({1, 2}));
  EXPECT_EQ(Ask(RunDetokenize, {{"tokens", {1, 2}}}), json({{"prompt", "bc"}}));
  EXPECT_EQ(Refused(RunTokenize, json::object()).param, "body.prompt");
  EXPECT_EQ(Refused(RunTokenize, {{"prompt", 5}}).param, "body.prompt");
  EXPECT_EQ(Refused(RunTokenize, {{"prompt", "b"}, {"model", "x"}}).status, 404);
  EXPECT_EQ(Refused(RunDetokenize, {{"tokens", {-1}}}).param, "body.tokens");
  fake_.model->tokenizer_config_json =
      R"({"eos_token":{"content":"</s>","lstrip":false},"vocab_file":"x","b":1})";
  EXPECT_EQ(
      json::parse(std::get<std::string>(*DescribeTokenizer(*fake_.model))),
      json({{"eos_token", "</s>"}, {"b", 1}, {"tokenizer_class", "PreTrainedTokenizerFast"}}));
}

}  // namespace
}  // namespace taopd::testing
