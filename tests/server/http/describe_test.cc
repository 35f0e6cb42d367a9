// The description of the server is held to its routes and to the code that reads the fields.
#include <nlohmann/json.hpp>
#include <set>

#include "server/http/chat/chat_request.h"
#include "server/http/completions/completion_request.h"
#include "server/http/describe/field_table.h"
#include "server/http/describe/openapi.h"
#include "server/http/generate/token_request.h"
#include "server/http/routes/completion_routes.h"
#include "server/http/routes/model_routes.h"
#include "server/http/sglang/sglang_request.h"
#include "server/http/tokenize/tokenize.h"
#include "server/http/trl/sequence_logprobs.h"
#include "server/options/config_json.h"
#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using nlohmann::json;
using testing::FakeModel;
using testing::MakeFakeModel;

using Names = std::set<std::string>;

Names NamesOf(const std::vector<FieldDoc>& fields) {
  Names names;
  for (const FieldDoc& field : fields) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name << " is listed twice";
  }
  return names;
}

const RouteDoc& DocOf(const std::string& path) {
  for (const RouteDoc& route : RouteDocs()) {
    if (route.path == path) return route;
  }
  ADD_FAILURE() << path;
  return RouteDocs()[0];
}

class DescribeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TokenizerConfig config;
    config.chat_templates["default"] = "a";
    auto chat = ChatTemplate::FromConfig(config);
    fake_.model->chat_template = std::make_unique<const ChatTemplate>(*std::move(chat));
  }
  const ServedModel& model() const { return *fake_.model; }
  FakeModel fake_ = MakeFakeModel(/*with_tokenizer=*/true);
};

TEST_F(DescribeTest, EveryRouteIsDescribed) {
  Names described, served;
  for (const RouteDoc& route : RouteDocs())
    described.insert(std::string(route.method) + " " + route.path);
  ServingState state(Clock::Real(), absl::Seconds(60));
  for (const Routes& routes : {CompletionRoutes(&state), ModelRoutes(&state)}) {
    for (const Route& route : routes) served.insert(route.method + " " + route.path);
  }
  served.insert("GET /health_generate");  // SGLang's name among the probes
  EXPECT_EQ(described, served);
}

TEST_F(DescribeTest, TheFieldsAreThoseThatAreRead) {
  const std::string chat = R"({"messages":[{"role":"user","content":"b"}]})";
  const json completion_json = {{"prompt", {1}}}, chat_json = json::parse(chat),
             token_json = {{"token_ids", {1}}, {"sampling_params", json::object()}},
             sglang_json = {{"input_ids", {1}}},
             trl_json = {{"sequences", {{1}}}, {"prompt_lengths", {0}}, {"top_logprobs", 1}},
             detokenize_json = {{"tokens", {1}}}, none = json::object();
  {
    JsonFields fields(completion_json);
    CompletionRequest request;
    EXPECT_OK(ReadCompletionRequest(fields, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/v1/completions").fields));
  }
  {
    JsonFields fields(chat_json);
    ChatRequest request;
    auto body = nlohmann::ordered_json::parse(chat);
    EXPECT_OK(ReadChatRequest(fields, &body, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/v1/chat/completions").fields));
  }
  {
    JsonFields fields(token_json), sampling(none);
    TokenRequest request;
    EXPECT_OK(ReadTokenRequest(fields, sampling, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/inference/v1/generate").fields));
    EXPECT_EQ(sampling.asked(), NamesOf(DocOf("/inference/v1/generate").sampling_fields));
  }
  {
    JsonFields fields(sglang_json), sampling(none);
    SglangRequest request;
    EXPECT_OK(ReadSglangRequest(fields, sampling, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/generate").fields));
    EXPECT_EQ(sampling.asked(), NamesOf(DocOf("/generate").sampling_fields));
  }
  {
    JsonFields fields(trl_json);
    SequenceLogprobsRequest request;
    EXPECT_OK(ReadSequenceLogprobs(fields, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/get_sequence_logprobs/").fields));
  }
  {
    JsonFields fields(chat_json);
    TokenizeRequest request;
    auto body = nlohmann::ordered_json::parse(chat);
    EXPECT_OK(ReadTokenizeRequest(fields, &body, model(), &request));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/tokenize").fields));
  }
  {
    JsonFields fields(detokenize_json);
    std::vector<int32_t> ids;
    EXPECT_OK(ReadDetokenizeRequest(fields, model(), &ids));
    EXPECT_EQ(fields.asked(), NamesOf(DocOf("/detokenize").fields));
  }
}

TEST_F(DescribeTest, OpenApiAndDocsHoldTheTables) {
  const json document = json::parse(OpenApiJson());
  const std::string page = DocsPage();
  for (const RouteDoc& route : RouteDocs()) {
    const json& operation =
        document["paths"][route.path][std::string(route.method) == "GET" ? "get" : "post"];
    EXPECT_EQ(operation["summary"], route.text);
    EXPECT_NE(page.find(route.path), std::string::npos);
    for (const FieldDoc& field : route.fields) {
      const json& schema = operation["requestBody"]["content"]["application/json"]["schema"];
      EXPECT_TRUE(schema["properties"].contains(field.name)) << route.path << " " << field.name;
    }
  }
  EXPECT_EQ(page.find("http://"), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

TEST(ConfigJsonTest, SecretsAreLeftOut) {
  struct Config {
    std::string name = "n", api_key = "secret", empty_key;
    std::vector<std::string> api_keys = {"secret"};
    int64_t max_tokens = 5;
    bool on = true;
    void Visit(SettingVisitor& v) {
      v.Setting("name", &name, "");
      v.Setting("api_key", &api_key, "");
      v.Setting("empty_key", &empty_key, "");
      v.Setting("api_keys", &api_keys, "");
      v.Setting("max_tokens", &max_tokens, "");
      v.Setting("on", &on, "");
    }
  } config;
  EXPECT_EQ(json::parse(ConfigJson(DescribeSettings(config))), json({{"name", "n"},
                                                                     {"api_key", "(redacted)"},
                                                                     {"empty_key", ""},
                                                                     {"api_keys", "(redacted)"},
                                                                     {"max_tokens", 5},
                                                                     {"on", true}}));
}

}  // namespace
}  // namespace taopd
