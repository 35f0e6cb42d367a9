#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>

#include "server/generation/request_fields.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

absl::StatusOr<CompletionRequest> Parse(const std::string& body, bool with_tokenizer = false) {
  return ReadAs(ReadCompletionRequest, body, *MakeFakeModel(with_tokenizer).model);
}

TEST(CompletionRequestTest, DefaultsAreVllms) {
  ASSERT_OK_AND_ASSIGN(const CompletionRequest request, Parse(R"({"prompt":[1,2,3]})"));
  EXPECT_EQ(request.model, "fake");
  EXPECT_EQ(request.request_id.size(), 32u);
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(request.prompts[0].token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_FALSE(request.logprobs || request.prompt_logprobs || request.seed || request.echo);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.n, 1);
}

TEST(CompletionRequestTest, ReadsEveryField) {
  ASSERT_OK_AND_ASSIGN(
      const CompletionRequest request,
      Parse(R"({"model":"fake","prompt":[[1],[2,3]],"max_tokens":0,"echo":true,"logprobs":4,)"
            R"("temperature":0.5,"top_p":0.25,"top_k":-1,"seed":7,"stop_token_ids":[5],)"
            R"("ignore_eos":true,"n":1,"return_token_ids":true,)"
            R"("return_tokens_as_token_ids":true,"skip_special_tokens":false,)"
            R"("request_id":"mine","stream":false,"stop":[],"user":"x",)"
            R"("an_unknown_field":{"a":1}})"));
  EXPECT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.prompts[0].max_new_tokens, 1);
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_EQ(request.prompt_logprobs, 4);  // by echo
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.top_k, -1);
  EXPECT_EQ(request.seed, 7);
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<int32_t>{5}));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_TRUE(request.return_token_ids && request.return_tokens_as_token_ids);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(request.request_id, "mine");
}

TEST(CompletionRequestTest, TextPromptsNeedATokenizer) {
  const auto refused = Parse(R"({"prompt":"bc"})");
  EXPECT_ERROR(refused, kInvalidArgument, "no tokenizer.json");
  ASSERT_OK_AND_ASSIGN(const CompletionRequest request, Parse(R"({"prompt":["bc","d"]})", true));
  EXPECT_EQ(request.prompts[0].token_ids,
            (std::vector<int32_t>{1, 1, 2}));  // with the special token
  EXPECT_EQ(request.prompts[1].text, "d");
  const auto plain = Parse(R"({"prompt":"bc","add_special_tokens":false})", true);
  EXPECT_EQ(plain->prompts[0].token_ids, (std::vector<int32_t>{1, 2}));
}

// Fields of a body, whose prompt is [1] unless they have another one, and what is said of them.
struct Refusal {
  std::string fields;
  const char* param;    // null if there is none; "body.NAME" for a value of a wrong type
  const char* message;  // null for any
};

void ExpectRefusals(const std::vector<Refusal>& cases) {
  for (const Refusal& c : cases) {
    json body = {{"prompt", {1}}};
    body.update(json::parse("{" + c.fields + "}"));
    const auto parsed = Parse(body.dump(), /*with_tokenizer=*/true);
    ASSERT_FALSE(parsed.ok()) << c.fields.substr(0, 100);
    const HttpError error = ToHttpError(parsed.status());
    EXPECT_EQ(error.status, 400) << error.message;
    EXPECT_EQ(error.param.value_or(""), c.param == nullptr ? "" : c.param) << error.message;
    const bool is_type = error.param && error.param->starts_with("body.");
    EXPECT_EQ(error.type, is_type ? "Bad Request" : "BadRequestError") << error.message;
    EXPECT_THAT(error.message, HasSubstr(c.message == nullptr ? "" : c.message));
    EXPECT_LT(error.message.size(), 400u);
  }
}

TEST(CompletionRequestTest, ErrorsOfPromptsAreVllms) {
  const auto repeated = [](const char* item, size_t count) {
    return R"("prompt":)" + json(count, json::parse(item)).dump();
  };
  ExpectRefusals({
      {R"("prompt":null)", "prompt",
       "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"},
      {R"("prompt":"")", "prompt", "Either prompt or prompt_embeds"},
      {R"("prompt":[])", nullptr, "You must pass at least one prompt"},
      {R"("prompt":[[]])", nullptr, "The decoder prompt cannot be empty"},
      {R"("prompt":[32])", nullptr, "Token id 32 is out of vocabulary"},
      {R"("prompt":[99999999999999999999])", nullptr, "is out of vocabulary"},
      {R"("prompt":[-1])", "body.prompt", "greater than or equal to 0"},
      {R"("prompt":[1,"a"])", "body.prompt", nullptr},
      {R"("prompt":[[1],"a"])", "body.prompt", nullptr},
      {R"("prompt":{})", "body.prompt", nullptr},
      {repeated("[1]", 1025), "prompt", "prompt list length 1025 exceeds"},
      {R"("prompt":[[1],[2]],"n":8193)", "n", "at most 16384 choices"},
      {repeated("1", 64), "max_tokens",
       "max_tokens must be at least 1, got 0: the prompt of 64 tokens fills the context."},
      {repeated("1", 65), "input_tokens",
       "This model's maximum context length is 64 tokens. However, your prompt contains at least "
       "65 input tokens, which exceeds this limit even without any output tokens. Please reduce "
       "the length of the input prompt. (parameter=input_tokens, value=65)"},
      {repeated("1", 64) + R"(,"max_tokens":0,"echo":true)", nullptr,
       "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is "
       "longer than the maximum model length of 64."},
      {R"("truncate_prompt_tokens":-2)", "body.truncate_prompt_tokens",
       "greater than or equal to -1"},
      {R"("truncation_side":"up")", "body.truncation_side", "'left' or 'right'"},
  });
  const HttpError model = ToHttpError(Parse(R"({"prompt":[1],"model":"X"})").status());
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.type, "NotFoundError");
  EXPECT_EQ(model.param, "model");
  EXPECT_EQ(model.message, "The model `X` does not exist. Valid aliases: fake.");
}

TEST(CompletionRequestTest, BodiesThatAreNoObjectsAreBadRequests) {
  for (const char* body : {R"({"prompt":[1])", "[1]", R"({"prompt":[1],"prompt":[2]})"}) {
    const HttpError error = ToHttpError(Parse(body).status());
    EXPECT_EQ(error.type, "Bad Request");
    EXPECT_EQ(error.param, "body");
    EXPECT_THAT(error.message, HasSubstr("1 validation error"));
  }
  EXPECT_EQ(ToHttpError(Parse(std::string(100000, '[')).status()).param, "body");
}

TEST(CompletionRequestTest, ErrorsOfReportsNameTheField) {
  const std::string scored = R"("prompt":[1,2,3],"prompt_logprobs":1,)";
  ExpectRefusals({
      {R"("prompt_logprobs":9)", "prompt_logprobs",
       "Requested prompt logprobs of 9, which is greater than max allowed: 8 "
       "(parameter=prompt_logprobs, value=9)"},
      {R"("prompt_logprobs":-1)", "prompt_logprobs",
       "Requested prompt logprobs of 32, which is greater than max allowed: 8"},
      {R"("logprobs":9)", "logprobs",
       "Requested sample logprobs of 9, which is greater than max allowed: 8 (parameter=logprobs, "
       "value=9)"},
      {R"("prompt_logprobs":-2)", "prompt_logprobs",
       "`prompt_logprobs` must be a positive value or -1. (parameter=prompt_logprobs, value=-2)"},
      {R"("prompt_logprobs":"abc")", "prompt_logprobs",
       "`prompt_logprobs` must be an integer. (parameter=prompt_logprobs, value=abc)"},
      {R"("max_tokens":0)", "max_tokens",
       "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"},
      {R"("suffix":"x")", "suffix", "suffix is not supported"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "can only be defined when"},
      {R"("stream":true,"stream_options":{"include_usage":5})", "body.stream_options.include_usage",
       "valid boolean"},
      {R"("stream":true,"prompt_logprobs":1)", "prompt_logprobs",
       "`prompt_logprobs` are not available when `stream=True`."},
      {R"("prompt_logprobs_start":1)", "prompt_logprobs_start", "needs prompt_logprobs"},
      {scored + R"("prompt_logprobs_start":4)", "prompt_logprobs_start",
       "prompt_logprobs_start 4 is beyond a prompt of 3 tokens"},
      {scored + R"("prompt_logprobs_start":0)", "prompt_logprobs_start", "must be at least 1"},
      {scored + R"("prompt_logprobs_format":"xml")", "prompt_logprobs_format",
       R"(must be "objects" or "base64", got "xml")"},
      {scored + R"("prompt_logprob_token_ids":[1,2,3,4,5])", "prompt_logprob_token_ids",
       "holds 5 ids for a position, at most 4"},
      {scored + R"("prompt_logprob_token_ids":[32])", "prompt_logprob_token_ids",
       "out-of-vocab token id 32"},
      {scored + R"("prompt_logprob_token_ids":[[1],[2,3]])", "prompt_logprob_token_ids",
       "lists of 1 and of 2 ids"},
      {scored + R"("prompt_logprob_token_ids":[[1]])", "prompt_logprob_token_ids",
       "has 1 lists, but 2 positions are scored"},
  });
}

TEST(CompletionRequestTest, ErrorsOfSamplingAreVllms) {
  ExpectRefusals({
      {R"("temperature":2.5)", "temperature", "temperature must be in [0, 2], got 2.5."},
      {R"("temperature":3)", "temperature", "got 3. (parameter=temperature, value=3)"},
      {R"("temperature":-1)", "temperature", "temperature must be in [0, 2], got -1."},
      {R"("top_p":0)", "top_p", "top_p must be in (0, 1], got 0."},
      {R"("top_p":1.5)", "top_p", "top_p must be in (0, 1], got 1.5."},
      {R"("top_k":-2)", "top_k", "top_k must be -1 or 0 (disable), or at least 1"},
      {R"("top_k":2147483648)", "top_k", "and below 2^31"},
      {R"("min_p":1.5)", "min_p", "min_p must be in [0, 1], got 1.5."},
      {R"("repetition_penalty":0)", "repetition_penalty",
       "repetition_penalty must be greater than zero and finite, got 0."},
      {R"("repetition_penalty":1e300)", "repetition_penalty", "greater than zero and finite"},
      {R"("presence_penalty":2.5)", "presence_penalty",
       "presence_penalty must be in [-2, 2], got 2.5."},
      {R"("frequency_penalty":-2.5)", "frequency_penalty",
       "frequency_penalty must be in [-2, 2], got -2.5."},
      {R"("min_tokens":-1)", "min_tokens",
       "min_tokens must be greater than or equal to 0, got -1."},
      {R"("min_tokens":17)", "min_tokens",
       "min_tokens must be less than or equal to max_tokens=16, got 17."},
      {R"("min_tokens":64,"max_tokens":100)", "min_tokens",
       "less than or equal to max_tokens=63, got 64."},
      {R"("n":0)", "n", "n must be at least 1, got 0."},
      {R"("logit_bias":{"x":1})", "logit_bias", "cannot be converted to integer token IDs: ['x']"},
      {R"("logit_bias":{")" + std::string(100000, 'x') + "\":1}", "logit_bias", nullptr},
      {R"("logit_bias":{"32":1})", "logit_bias",
       "token_id(s) [32] in logit_bias contain out-of-vocab token ids. Vocabulary size: 32"},
      {R"("allowed_token_ids":[])", "allowed_token_ids",
       "allowed_token_ids is not None and empty!"},
      {R"("allowed_token_ids":[32])", "allowed_token_ids",
       "allowed_token_ids contains out-of-vocab token id!"},
      {R"("stop_token_ids":[32])", "stop_token_ids",
       "stop_token_ids contains out-of-vocab token id!"},
      {R"("stop_token_ids":[-1])", "stop_token_ids", "out-of-vocab token id!"},
      {R"("stop":"")", "stop", "stop cannot contain an empty string"},
      {R"("stop":["a",""])", "stop", "stop cannot contain an empty string"},
      {R"("bad_words":[""])", "bad_words", "bad_words cannot contain an empty string."},
      {R"("bad_words":["  "])", "bad_words", "which has no tokens"},
      {R"("cache_salt":"")", "cache_salt", "Parameter 'cache_salt' must be a non-empty string"},
      {R"("cache_salt":5)", "cache_salt", nullptr},
  });
}

TEST(CompletionRequestTest, ValuesOfAWrongTypeNameTheField) {
  ExpectRefusals({
      {R"("max_tokens":"x")", "body.max_tokens", "valid integer"},
      {R"("echo":2)", "body.echo", "valid boolean"},
      {R"("temperature":"x")", "body.temperature", nullptr},
      {R"("min_tokens":1.5)", "body.min_tokens", nullptr},
      {R"("n":"two")", "body.n", nullptr},
      {R"("logit_bias":[1])", "body.logit_bias", nullptr},
      {R"("logit_bias":{"1":"x"})", "body.logit_bias", nullptr},
      {R"("allowed_token_ids":5)", "body.allowed_token_ids", nullptr},
      {R"("allowed_token_ids":["x"])", "body.allowed_token_ids", nullptr},
      {R"("stop":5)", "body.stop", nullptr},
      {R"("stop":[5])", "body.stop", nullptr},
      {R"("bad_words":"word")", "body.bad_words", nullptr},
      {R"("user":5)", "body.user", nullptr},
      {R"("include_stop_str_in_output":"perhaps")", "body.include_stop_str_in_output", nullptr},
  });
}

// The requested form becomes a spec, with the keys of a schema in their order.
TEST(CompletionRequestTest, TheFormOfTheTextBecomesAGrammar) {
  const auto grammar = [](const std::string& fields) {
    const auto parsed = Parse(R"({"prompt":[1],)" + fields + "}");
    EXPECT_OK(parsed);
    return parsed.ok() ? parsed->grammar : std::nullopt;
  };
  const std::string schema = R"({"z":1,"a":{"y":2,"b":3}})";
  for (const std::string& fields :
       {R"("structured_outputs":{"json":)" + schema + "}",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" + schema +
            "}}"}) {
    const auto parsed = grammar(fields);
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->spec.kind, GrammarSpec::Kind::kJsonSchema);
    EXPECT_EQ(parsed->spec.text, schema);
  }
  EXPECT_FALSE(grammar(R"("response_format":{"type":"text"})").has_value());
  EXPECT_FALSE(grammar(R"("structured_outputs":null)").has_value());
  EXPECT_EQ(grammar(R"("response_format":{"type":"json_object"})")->spec.text,
            R"({"type": "object"})");
  EXPECT_EQ(grammar(R"("structured_outputs":{"regex":"a+"})")->spec.kind,
            GrammarSpec::Kind::kRegex);
  const auto tag = grammar(
      R"("response_format":{"type":"structural_tag","structures":[],"triggers":[],"format":null})");
  EXPECT_EQ(tag->spec.kind, GrammarSpec::Kind::kStructuralTag);
  EXPECT_THAT(tag->spec.text, HasSubstr(R"("structures":[],"triggers":[])"));
  EXPECT_FALSE(grammar(R"("structured_outputs":{"json":"{}","disable_any_whitespace":true})")
                   ->spec.any_whitespace);
}

TEST(CompletionRequestTest, FormsThatContradictEachOtherAreRefused) {
  for (const char* fields :
       {R"("response_format":"text")", R"("response_format":{"type":5})", R"("response_format":{})",
        R"("response_format":{"type":"xml"})", R"("response_format":{"type":"json_schema"})",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
        R"("structured_outputs":{"a":1})", R"("structured_outputs":[])",
        R"("structured_outputs":{"json":5})", R"("structured_outputs":{"choice":[]})",
        R"("structured_outputs":{"choice":[1]})",
        R"("structured_outputs":{"regex":"a","grammar":"b"})",
        R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})",
        R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})"}) {
    const auto parsed = Parse(std::string(R"({"prompt":[1],)") + fields + "}");
    EXPECT_EQ(ToHttpError(parsed.status()).status, 400) << fields;
  }
}

TEST(CompletionRequestTest, UnsupportedFieldsAreRefusedByNameUnlessNeutral) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"use_beam_search", "true"},
      {"prompt_embeds", R"("x")"},
      {"logprob_token_ids", "[1]"},
      {"spaces_between_special_tokens", "false"}};
  for (const auto& [name, value] : fields) {
    const auto parsed = Parse(R"({"prompt":[1],")" + name + "\":" + value + "}");
    EXPECT_EQ(FieldOf(parsed.status()), name);
    EXPECT_THAT(parsed.status().message(), HasSubstr(name + " is not supported"));
    EXPECT_OK(Parse(R"({"prompt":[1],")" + name + "\":null}"));
  }
}

TEST(CompletionRequestTest, ValuesAreConvertedAsInVllm) {
  ASSERT_OK_AND_ASSIGN(
      const CompletionRequest request,
      Parse(R"({"prompt":[1],"max_tokens":"3","echo":"Yes","temperature":"0.5","n":true})"));
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.n, 1);
  for (const char* name : {"best_of", "guided_regex", "nonsense", "priority", "session_id"}) {
    const std::string value = std::string(name) == "session_id" ? R"("s")" : "7";
    EXPECT_OK(Parse(R"({"prompt":[1],")" + std::string(name) + "\":" + value + "}"));
  }
}

TEST(CompletionRequestTest, PromptsAreTruncatedAsAsked) {
  const auto truncated = [](const std::string& fields) {
    const auto parsed = Parse(R"({"prompt":[1,2,3,4],)" + fields + "}");
    return parsed.ok() ? parsed->prompts[0].token_ids : std::vector<int32_t>();
  };
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":2)"), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":2,"truncation_side":"right")"),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":9)"), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":-1)"), (std::vector<int32_t>{1, 2, 3, 4}));
  // As many as leave room for max_tokens, or for one token.
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":-1,"max_tokens":61)"),
            (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(truncated(R"("truncate_prompt_tokens":-1,"max_tokens":64)"),
            (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST(HttpErrorTest, JsonShape) {
  EXPECT_EQ(ToHttpError(FieldStatus("f", "m \xFF")).Json(),
            R"({"error":{"message":"m )"
            "\xEF\xBF\xBD\",\"type\":\"BadRequestError\",\"param\":\"f\",\"code\":400}}");
  EXPECT_EQ(ToHttpError(ResourceExhausted("q")).status, 429);
  EXPECT_EQ(ToHttpError(Unavailable("u")).status, 503);
  EXPECT_EQ(ToHttpError(absl::AbortedError("a")).status, 503);
  EXPECT_EQ(ToHttpError(absl::DeadlineExceededError("d")).status, 504);
  EXPECT_EQ(ToHttpError(Internal("i")).status, 500);
}

}  // namespace
}  // namespace taopd::testing
