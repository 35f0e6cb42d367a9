#include "server/http/dialects/protocols.h"

#include <nlohmann/json.hpp>

#include "server/generation/request_fields.h"
#include "tests/server/http/dialect_fixture.h"

namespace taopd {
namespace {

using ::testing::HasSubstr;
using testing::MakeFakeModel;

absl::StatusOr<CompletionRequest> Parse(const std::string& body, bool with_tokenizer = false) {
  return testing::ReadAs(ReadCompletionRequest, body, *MakeFakeModel(with_tokenizer).model);
}

TEST(CompletionRequestTest, DefaultsAreVllms) {
  const auto parsed = Parse("{\"prompt\":[1,2,3]}");
  ASSERT_OK(parsed);
  const CompletionRequest& request = *parsed;
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
  const auto parsed = Parse(
      "{\"model\":\"fake\",\"prompt\":[[1],[2,3]],\"max_tokens\":0,\"echo\":true,\"logprobs\":4,"
      "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":-1,\"seed\":7,\"stop_token_ids\":[5],\"ignore_"
      "eos\":true,"
      "\"n\":1,\"return_token_ids\":true,\"return_tokens_as_token_ids\":true,\"skip_special_"
      "tokens\":false,"
      "\"request_id\":\"mine\",\"stream\":false,\"stop\":[],\"user\":\"x\",\"an_unknown_field\":{"
      "\"a\":1}}");
  ASSERT_OK(parsed);
  const CompletionRequest& request = *parsed;
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
  const auto refused = Parse("{\"prompt\":\"bc\"}");
  EXPECT_ERROR(refused, absl::StatusCode::kInvalidArgument, "no tokenizer.json");
  const auto parsed = Parse("{\"prompt\":[\"bc\",\"d\"]}", true);
  ASSERT_OK(parsed);
  const CompletionRequest& request = *parsed;
  EXPECT_EQ(request.prompts[0].token_ids,
            (std::vector<int32_t>{1, 1, 2}));  // with the special token
  EXPECT_EQ(request.prompts[1].text, "d");
  const auto plain = Parse("{\"prompt\":\"bc\",\"add_special_tokens\":false}", true);
  EXPECT_EQ(plain->prompts[0].token_ids, (std::vector<int32_t>{1, 2}));
}

struct ErrorCase {
  std::string body;
  int status;
  std::string type;
  std::optional<std::string> param;
  std::string message;
};

void ExpectErrors(const std::vector<ErrorCase>& cases) {
  for (const ErrorCase& expected : cases) {
    const auto parsed = Parse(expected.body);
    ASSERT_FALSE(parsed.ok()) << expected.body.substr(0, 100);
    const HttpError error = FromStatus(parsed.status());
    EXPECT_EQ(error.status, expected.status) << error.message;
    EXPECT_EQ(error.type, expected.type) << error.message;
    EXPECT_EQ(error.param, expected.param) << error.message;
    EXPECT_THAT(error.message, HasSubstr(expected.message));
  }
}

TEST(CompletionRequestTest, ErrorsAreVllms) {
  std::string many = "[1";
  for (int i = 0; i < 63; ++i) many += ",1";
  const std::string longer = many + ",1]";
  many += "]";
  std::string prompts = "[[1]";
  for (int i = 0; i < 1024; ++i) prompts += ",[1]";
  prompts += "]";
  const std::string bad = "BadRequestError";
  const std::vector<ErrorCase> cases = {
      {"{\"prompt\":[1],\"model\":\"X\"}", 404, "NotFoundError", "model",
       "The model `X` does not exist. Valid aliases: fake."},
      {"{}", 400, bad, "prompt",
       "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"},
      {"{\"prompt\":\"\"}", 400, bad, "prompt", "Either prompt or prompt_embeds"},
      {"{\"prompt\":[]}", 400, bad, std::nullopt, "You must pass at least one prompt"},
      {"{\"prompt\":[[]]}", 400, bad, std::nullopt, "The decoder prompt cannot be empty"},
      {"{\"prompt\":[32]}", 400, bad, std::nullopt, "Token id 32 is out of vocabulary"},
      {"{\"prompt\":[99999999999999999999]}", 400, bad, std::nullopt, "is out of vocabulary"},
      {"{\"prompt\":[-1]}", 400, "Bad Request", "body.prompt", "greater than or equal to 0"},
      {"{\"prompt\":[1,\"a\"]}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":[[1],\"a\"]}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":{}}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":" + prompts + "}", 400, bad, "prompt", "prompt list length 1025 exceeds"},
      {"{\"prompt\":[1],\"prompt_logprobs\":9}", 400, bad, "prompt_logprobs",
       "Requested prompt logprobs of 9, which is greater than max allowed: 8 "
       "(parameter=prompt_logprobs, value=9)"},
      {"{\"prompt\":[1],\"prompt_logprobs\":-1}", 400, bad, "prompt_logprobs",
       "Requested prompt logprobs of 32, which is greater than max allowed: 8"},
      {"{\"prompt\":[1],\"logprobs\":9}", 400, bad, "logprobs",
       "Requested sample logprobs of 9, which is greater than max allowed: 8 (parameter=logprobs, "
       "value=9)"},
      {"{\"prompt\":[1],\"prompt_logprobs\":-2}", 400, bad, "prompt_logprobs",
       "`prompt_logprobs` must be a positive value or -1. (parameter=prompt_logprobs, value=-2)"},
      {"{\"prompt\":[1],\"prompt_logprobs\":\"abc\"}", 400, bad, "prompt_logprobs",
       "`prompt_logprobs` must be an integer. (parameter=prompt_logprobs, value=abc)"},
      {"{\"prompt\":[1],\"max_tokens\":0}", 400, bad, "max_tokens",
       "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"},
      {"{\"prompt\":[1],\"max_tokens\":\"x\"}", 400, "Bad Request", "body.max_tokens",
       "valid integer"},
      {"{\"prompt\":[1],\"echo\":2}", 400, "Bad Request", "body.echo", "valid boolean"},
      {"{\"prompt\":[1],\"temperature\":3}", 400, bad, "temperature",
       "temperature must be in [0, 2], got 3. (parameter=temperature, value=3)"},
      {"{\"prompt\":[1],\"top_p\":0}", 400, bad, "top_p", "(0, 1]"},
      {"{\"prompt\":[1],\"top_k\":-2}", 400, bad, "top_k",
       "top_k must be 0 (disable), or at least 1"},
      {"{\"prompt\":[1],\"stop_token_ids\":[32]}", 400, bad, "stop_token_ids",
       "stop_token_ids contains out-of-vocab token id!"},
      {"{\"prompt\":[1],\"suffix\":\"x\"}", 400, bad, "suffix", "suffix is not supported"},
      {"{\"prompt\":[1],\"stream_options\":{\"include_usage\":true}}", 400, bad, "stream_options",
       "can only be defined when"},
      {"{\"prompt\":" + many + ",\"max_tokens\":1}", 400, bad, "max_tokens",
       "max_tokens must be at least 1, got 0: the prompt of 64 tokens fills the context."},
      {"{\"prompt\":" + longer + "}", 400, bad, "input_tokens",
       "This model's maximum context length is 64 tokens. However, your prompt contains at least "
       "65 "
       "input tokens, which exceeds this limit even without any output tokens. Please reduce the "
       "length of the input prompt. (parameter=input_tokens, value=65)"},
      {"{\"prompt\":" + many + ",\"max_tokens\":0,\"echo\":true}", 400, bad, std::nullopt,
       "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is "
       "longer than the "
       "maximum model length of 64."},
      {"{\"prompt\":[1]", 400, "Bad Request", "body", "1 validation error"},
      {"[1]", 400, "Bad Request", "body", "object"},
      {std::string(100000, '['), 400, "Bad Request", "body", ""},
      {"{\"prompt\":[1],\"prompt\":[2]}", 400, "Bad Request", "body", ""},
  };
  ExpectErrors(cases);
}

TEST(CompletionRequestTest, ErrorsOfStreamsAndScoringNameTheField) {
  const std::string bad = "BadRequestError";
  ExpectErrors({
      {"{\"prompt\":[1],\"stream\":true,\"prompt_logprobs\":1}", 400, bad, "prompt_logprobs",
       "`prompt_logprobs` are not available when `stream=True`."},
      {"{\"prompt\":[1],\"stream\":true,\"stream_options\":{\"include_usage\":5}}", 400,
       "Bad Request", "body.stream_options.include_usage", "valid boolean"},
      {"{\"prompt\":[1],\"truncate_prompt_tokens\":-2}", 400, "Bad Request",
       "body.truncate_prompt_tokens", "greater than or equal to -1"},
      {"{\"prompt\":[1],\"truncation_side\":\"up\"}", 400, "Bad Request", "body.truncation_side",
       "'left' or 'right'"},
      {"{\"prompt\":[1],\"prompt_logprobs_start\":1}", 400, bad, "prompt_logprobs_start",
       "needs prompt_logprobs"},
      {"{\"prompt\":[1,2],\"prompt_logprobs\":1,\"prompt_logprobs_start\":3}", 400, bad,
       "prompt_logprobs_start", "prompt_logprobs_start 3 is beyond a prompt of 2 tokens"},
      {"{\"prompt\":[1],\"prompt_logprobs\":1,\"prompt_logprobs_start\":0}", 400, bad,
       "prompt_logprobs_start", "must be at least 1"},
      {"{\"prompt\":[1],\"prompt_logprobs\":1,\"prompt_logprobs_format\":\"xml\"}", 400, bad,
       "prompt_logprobs_format", "must be \"objects\" or \"base64\", got \"xml\""},
      {"{\"prompt\":[1],\"prompt_logprobs\":1,\"prompt_logprob_token_ids\":[1,2,3,4,5]}", 400, bad,
       "prompt_logprob_token_ids", "holds 5 ids for a position, at most 4"},
      {"{\"prompt\":[1],\"prompt_logprobs\":1,\"prompt_logprob_token_ids\":[32]}", 400, bad,
       "prompt_logprob_token_ids", "out-of-vocab token id 32"},
      {"{\"prompt\":[1,2,3],\"prompt_logprobs\":1,\"prompt_logprob_token_ids\":[[1],[2,3]]}", 400,
       bad, "prompt_logprob_token_ids", "lists of 1 and of 2 ids"},
      {"{\"prompt\":[1,2,3],\"prompt_logprobs\":1,\"prompt_logprob_token_ids\":[[1]]}", 400, bad,
       "prompt_logprob_token_ids", "has 1 lists, but 2 positions are scored"},
  });
}

// The requested form becomes a spec, with the keys of a schema in their order.
TEST(CompletionRequestTest, TheFormOfTheTextBecomesAGrammar) {
  const auto grammar = [](const std::string& fields) {
    const auto parsed = Parse("{\"prompt\":[1]," + fields + "}");
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
  EXPECT_FALSE(grammar(R"("structured_outputs":{"json":"{}","disable_any_whitespace":true})")
                   ->spec.any_whitespace);
  // xgrammar's older form of a structural tag.
  EXPECT_EQ(grammar(R"("response_format":{"type":"structural_tag","structures":[{"begin":"<f>",)"
                    R"("schema":{"b":1,"a":2},"end":"</f>"}],"triggers":["<f"]})")
                ->spec.text,
            R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],)"
            R"("tags":[{"type":"tag","begin":"<f>","content":{"type":"json_schema",)"
            R"("json_schema":{"b":1,"a":2}},"end":"</f>"}]}})");
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
        R"("structured_outputs":{"structural_tag":"["})",
        R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})"}) {
    const auto parsed = Parse(std::string("{\"prompt\":[1],") + fields + "}");
    EXPECT_EQ(FromStatus(parsed.status()).status, 400) << fields;
  }
}

TEST(CompletionRequestTest, UnsupportedFieldsAreRefusedByNameUnlessNeutral) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"use_beam_search", "true"},
      {"prompt_embeds", "\"x\""},
      {"logprob_token_ids", "[1]"},
      {"spaces_between_special_tokens", "false"}};
  for (const auto& [name, value] : fields) {
    const auto parsed = Parse("{\"prompt\":[1],\"" + name + "\":" + value + "}");
    EXPECT_EQ(FieldOf(parsed.status()), name);
    EXPECT_THAT(parsed.status().message(), HasSubstr(name + " is not supported"));
    EXPECT_OK(Parse("{\"prompt\":[1],\"" + name + "\":null}"));
  }
}

TEST(CompletionRequestTest, ValuesAreConvertedAsInVllm) {
  const auto parsed = Parse(
      "{\"prompt\":[1],\"max_tokens\":\"3\",\"echo\":\"Yes\",\"temperature\":\"0.5\",\"n\":true}");
  ASSERT_OK(parsed);
  const CompletionRequest& request = *parsed;
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.n, 1);
  for (const char* name : {"best_of", "guided_regex", "nonsense", "priority", "session_id"}) {
    const std::string value = std::string(name) == "session_id" ? "\"s\"" : "7";
    EXPECT_OK(Parse("{\"prompt\":[1],\"" + std::string(name) + "\":" + value + "}"));
  }
}

TEST(CompletionRequestTest, PromptsAreTruncatedAsAsked) {
  const auto truncated = [](const std::string& fields) {
    const auto parsed = Parse("{\"prompt\":[1,2,3,4]," + fields + "}");
    return parsed.ok() ? parsed->prompts[0].token_ids : std::vector<int32_t>();
  };
  EXPECT_EQ(truncated("\"truncate_prompt_tokens\":2"), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(truncated("\"truncate_prompt_tokens\":2,\"truncation_side\":\"right\""),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(truncated("\"truncate_prompt_tokens\":9"), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(truncated("\"truncate_prompt_tokens\":-1"), (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST(HttpErrorTest, JsonShape) {
  EXPECT_EQ(FromStatus(FieldStatus("f", "m \xFF")).Json(),
            "{\"error\":{\"message\":\"m "
            "\xEF\xBF\xBD\",\"type\":\"BadRequestError\",\"param\":\"f\",\"code\":400}}");
  EXPECT_EQ(FromStatus(ResourceExhausted("q")).status, 429);
  EXPECT_EQ(FromStatus(Unavailable("u")).status, 503);
  EXPECT_EQ(FromStatus(absl::DeadlineExceededError("d")).status, 504);
  EXPECT_EQ(FromStatus(Internal("i")).status, 500);
}

}  // namespace
}  // namespace taopd
