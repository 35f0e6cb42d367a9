#include "server/http/completion_request.h"

#include <nlohmann/json.hpp>

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using ::testing::HasSubstr;
using testing::MakeFakeModel;

std::variant<CompletionRequest, HttpError> Parse(const std::string& body,
                                                 bool with_tokenizer = false) {
  return ParseCompletionRequest(body, *MakeFakeModel(with_tokenizer).model);
}

TEST(CompletionRequestTest, DefaultsAreVllms) {
  const auto parsed = Parse("{\"prompt\":[1,2,3]}");
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  const auto& request = std::get<CompletionRequest>(parsed);
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
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  const auto& request = std::get<CompletionRequest>(parsed);
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
  ASSERT_TRUE(std::holds_alternative<HttpError>(refused));
  EXPECT_THAT(std::get<HttpError>(refused).message, HasSubstr("no tokenizer.json"));
  const auto parsed = Parse("{\"prompt\":[\"bc\",\"d\"]}", true);
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  const auto& request = std::get<CompletionRequest>(parsed);
  EXPECT_EQ(request.prompts[0].token_ids,
            (std::vector<int32_t>{1, 1, 2}));  // with the special token
  EXPECT_EQ(request.prompts[1].text, "d");
  const auto plain = Parse("{\"prompt\":\"bc\",\"add_special_tokens\":false}", true);
  EXPECT_EQ(std::get<CompletionRequest>(plain).prompts[0].token_ids, (std::vector<int32_t>{1, 2}));
}

TEST(CompletionRequestTest, EmptyListOfPromptsHasNoChoices) {
  const auto parsed = Parse("{\"prompt\":[]}");
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  EXPECT_TRUE(std::get<CompletionRequest>(parsed).prompts.empty());
}

struct ErrorCase {
  std::string body;
  int status;
  std::string type;
  std::optional<std::string> param;
  std::string message;
};

TEST(CompletionRequestTest, ErrorsAreVllms) {
  std::string many = "[1";
  for (int i = 0; i < 63; ++i) many += ",1";
  many += "]";
  std::string prompts = "[[1]";
  for (int i = 0; i < 1024; ++i) prompts += ",[1]";
  prompts += "]";
  const std::string bad = "BadRequestError";
  const std::vector<ErrorCase> cases = {
      {"{\"prompt\":[1],\"model\":\"X\"}", 404, "NotFoundError", "model",
       "The model `X` does not exist."},
      {"{}", 400, bad, "prompt",
       "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"},
      {"{\"prompt\":\"\"}", 400, bad, "prompt", "Either prompt or prompt_embeds"},
      {"{\"prompt\":[[]]}", 400, bad, std::nullopt, "The decoder prompt cannot be empty"},
      {"{\"prompt\":[32]}", 400, bad, std::nullopt, "Token id 32 is out of vocabulary"},
      {"{\"prompt\":[99999999999999999999]}", 400, "Bad Request", "body.prompt", "integers"},
      {"{\"prompt\":[-1]}", 400, "Bad Request", "body.prompt", "greater than or equal to 0"},
      {"{\"prompt\":[1,\"a\"]}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":[[1],\"a\"]}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":{}}", 400, "Bad Request", "body.prompt", ""},
      {"{\"prompt\":" + prompts + "}", 400, bad, std::nullopt, "prompt list length 1025 exceeds"},
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
      {"{\"prompt\":[1],\"echo\":1}", 400, "Bad Request", "body.echo", "valid boolean"},
      {"{\"prompt\":[1],\"temperature\":3}", 400, bad, "temperature",
       "temperature must be in [0, 2], got 3. (parameter=temperature, value=3)"},
      {"{\"prompt\":[1],\"top_p\":0}", 400, bad, "top_p", "(0, 1]"},
      {"{\"prompt\":[1],\"top_k\":-2}", 400, bad, "top_k",
       "top_k must be 0 (disable), or at least 1"},
      {"{\"prompt\":[1],\"stop_token_ids\":[32]}", 400, bad, "stop_token_ids",
       "stop_token_ids contains out-of-vocab token id!"},
      {"{\"prompt\":[1],\"suffix\":\"x\"}", 400, bad, std::nullopt,
       "suffix is not currently supported"},
      {"{\"prompt\":[1],\"stream_options\":{}}", 400, bad, "stream_options",
       "can only be defined when"},
      {"{\"prompt\":" + many + ",\"max_tokens\":1}", 400, bad, "input_tokens",
       "This model's maximum context length is 64 tokens. However, you requested 1 output tokens "
       "and your prompt "
       "contains 64 input tokens, for a total of 65 tokens. Please reduce the length of the input "
       "prompt or the "
       "number of requested output tokens. (parameter=input_tokens, value=64)"},
      {"{\"prompt\":" + many + ",\"max_tokens\":0,\"echo\":true}", 400, bad, std::nullopt,
       "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is "
       "longer than the "
       "maximum model length of 64."},
      {"{\"prompt\":" + many + ",\"max_tokens\":9223372036854775807}", 400, bad, "input_tokens",
       "a total of 9223372036854775871"},
      {"{\"prompt\":[1]", 400, "Bad Request", "body", "1 validation error"},
      {"[1]", 400, "Bad Request", "body", "object"},
      {std::string(100000, '['), 400, "Bad Request", "body", ""},
      {"{\"prompt\":[1],\"prompt\":[2]}", 400, "Bad Request", "body", ""},
  };
  for (const ErrorCase& expected : cases) {
    const auto parsed = Parse(expected.body);
    ASSERT_TRUE(std::holds_alternative<HttpError>(parsed)) << expected.body.substr(0, 100);
    const HttpError& error = std::get<HttpError>(parsed);
    EXPECT_EQ(error.status, expected.status) << error.message;
    EXPECT_EQ(error.type, expected.type) << error.message;
    EXPECT_EQ(error.param, expected.param) << error.message;
    EXPECT_THAT(error.message, HasSubstr(expected.message));
  }
}

TEST(CompletionRequestTest, UnsupportedFieldsAreRefusedByNameUnlessNeutral) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"best_of", "2"},
      {"stream", "true"},
      {"use_beam_search", "true"},
      {"prompt_embeds", "\"x\""},
      {"priority", "1"},
      {"truncate_prompt_tokens", "4"},
      {"logprob_token_ids", "[1]"},
      {"response_format", "{\"type\":\"json_object\"}"},
      {"response_format", "\"text\""},
      {"response_format", "{\"type\":5}"},
      {"response_format", "{}"},
      {"structured_outputs", "{\"a\":1}"},
      {"guided_regex", "\"a\""},
      {"spaces_between_special_tokens", "false"}};
  for (const auto& [name, value] : fields) {
    const auto parsed = Parse("{\"prompt\":[1],\"" + name + "\":" + value + "}");
    ASSERT_TRUE(std::holds_alternative<HttpError>(parsed)) << name;
    EXPECT_EQ(std::get<HttpError>(parsed).param, name);
    EXPECT_THAT(std::get<HttpError>(parsed).message, HasSubstr(name + " is not supported"));
    EXPECT_TRUE(
        std::holds_alternative<CompletionRequest>(Parse("{\"prompt\":[1],\"" + name + "\":null}")))
        << name;
  }
}

TEST(HttpErrorTest, JsonShape) {
  EXPECT_EQ(BadField("f", "m \xFF").Json(),
            "{\"error\":{\"message\":\"m "
            "\xEF\xBF\xBD\",\"type\":\"BadRequestError\",\"param\":\"f\",\"code\":400}}");
  EXPECT_EQ(FromStatus(ResourceExhausted("q")).status, 429);
  EXPECT_EQ(FromStatus(Unavailable("u")).status, 503);
  EXPECT_EQ(FromStatus(absl::DeadlineExceededError("d")).status, 504);
  EXPECT_EQ(FromStatus(Internal("i")).status, 500);
}

}  // namespace
}  // namespace taopd
