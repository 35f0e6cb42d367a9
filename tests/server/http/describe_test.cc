// The description of the server is held to its routes and to the code that reads the fields.
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "server/http/chat/chat_request.h"
#include "server/http/completions/completion_request.h"
#include "server/http/describe/field_table.h"
#include "server/http/describe/openapi.h"
#include "server/http/generate/token_request.h"
#include "server/http/routes/completion_routes.h"
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
  for (const Route& route : CompletionRoutes(&state))
    served.insert(route.method + " " + route.path);
  served.insert("GET /health_generate");  // SGLang's name among the probes
  EXPECT_EQ(described, served);
}

// The route's table has the fields that `read` asks for in this body.
void ExpectFields(const std::string& route, const json& body,
                  const std::function<absl::Status(JsonFields&)>& read) {
  JsonFields fields(body);
  EXPECT_OK(read(fields));
  EXPECT_EQ(fields.asked(), NamesOf(DocOf(route).fields)) << route;
}

TEST_F(DescribeTest, TheFieldsAreThoseThatAreRead) {
  const std::string chat = R"({"messages":[{"role":"user","content":"b"}]})";
  const json none = json::object();
  ExpectFields("/v1/completions", {{"prompt", {1}}}, [&](JsonFields& fields) {
    CompletionRequest request;
    return ReadCompletionRequest(fields, model(), &request);
  });
  ExpectFields("/v1/chat/completions", json::parse(chat), [&](JsonFields& fields) {
    ChatRequest request;
    auto body = nlohmann::ordered_json::parse(chat);
    return ReadChatRequest(fields, &body, model(), &request);
  });
  const json tokens = {{"token_ids", {1}}, {"sampling_params", none}};
  JsonFields sampling(none), sglang_sampling(none);
  ExpectFields("/inference/v1/generate", tokens, [&](JsonFields& fields) {
    TokenRequest request;
    return ReadTokenRequest(fields, sampling, model(), &request);
  });
  EXPECT_EQ(sampling.asked(), NamesOf(DocOf("/inference/v1/generate").sampling_fields));
  ExpectFields("/generate", {{"input_ids", {1}}}, [&](JsonFields& fields) {
    SglangRequest request;
    return ReadSglangRequest(fields, sglang_sampling, model(), &request);
  });
  EXPECT_EQ(sglang_sampling.asked(), NamesOf(DocOf("/generate").sampling_fields));
  const json sequences = {{"sequences", {{1}}}, {"prompt_lengths", {0}}, {"top_logprobs", 1}};
  ExpectFields("/get_sequence_logprobs/", sequences, [&](JsonFields& fields) {
    SequenceLogprobsRequest request;
    return ReadSequenceLogprobs(fields, model(), &request);
  });
  ExpectFields("/tokenize", json::parse(chat), [&](JsonFields& fields) {
    TokenizeRequest request;
    auto body = nlohmann::ordered_json::parse(chat);
    return ReadTokenizeRequest(fields, &body, model(), &request);
  });
  ExpectFields("/detokenize", {{"tokens", {1}}}, [&](JsonFields& fields) {
    std::vector<int32_t> ids;
    return ReadDetokenizeRequest(fields, model(), &ids);
  });
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
