// The description of the server is held to its routes and to the code that reads the fields.
#include <nlohmann/json.hpp>
#include <set>

#include "server/http/chat/chat.h"
#include "server/http/protocols/protocols.h"
#include "server/http/request/field_table.h"
#include "server/http/routes/openapi.h"
#include "server/http/routes/routes.h"
#include "server/http/routes/tokenize.h"
#include "server/options/config_json.h"
#include "server/options/teacher_options.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

using Names = std::set<std::string>;

// The names of the fields that a protocol reads.
Names NamesOf(const std::vector<FieldDoc>& fields) {
  Names names;
  for (const FieldDoc& field : fields) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name << " is listed twice";
  }
  for (const FieldDoc& field : fields) {
    if (field.use != FieldUse::kRead) names.erase(field.name);
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
  void SetUp() override { fake_.model->chat_template = MakeChatTemplate("a"); }
  const ServedModel& model() const { return *fake_.model; }
  FakeModel fake_ = MakeFakeModel(/*with_tokenizer=*/true);
};

TEST_F(DescribeTest, EveryRouteIsDescribed) {
  Names described, served;
  for (const RouteDoc& route : RouteDocs())
    described.insert(std::string(route.method) + " " + route.path);
  ServingState state(Clock::Real(), absl::Seconds(60));
  ServerMetrics metrics;
  for (const Route& route : MakeRoutes(&state, &metrics)) {
    if (route.kind == RouteKind::kProbe && route.path != "/health_generate") continue;
    served.insert(route.method + " " + route.path);
  }
  EXPECT_EQ(described, served);
}

TEST_F(DescribeTest, TheFieldsAreThoseThatAreRead) {
  // The route's tables have the fields that `read` asks for in this body.
  const auto expect_fields = [&]<typename Request>(
                                 const char* route, const char* text,
                                 absl::Status (*read)(JsonFields&, const ServedModel&, Request*)) {
    auto body = nlohmann::ordered_json::parse(text);
    JsonFields fields(body);
    Request request;
    EXPECT_OK(read(fields, model(), &request));
    const RouteDoc& doc = DocOf(route);
    EXPECT_EQ(fields.asked(), NamesOf(doc.fields)) << route;
    if (doc.sampling_fields.empty()) return;
    EXPECT_EQ(fields.Nested("sampling_params").asked(), NamesOf(doc.sampling_fields)) << route;
  };
  constexpr char kChat[] = R"({"messages":[{"role":"user","content":"b"}]})";
  expect_fields("/v1/completions", R"({"prompt":[1]})", ReadCompletionRequest);
  expect_fields("/v1/chat/completions", kChat, ReadChatRequest);
  expect_fields("/inference/v1/generate", R"({"token_ids":[1],"sampling_params":{}})",
                ReadTokenRequest);
  expect_fields("/generate", R"({"input_ids":[1]})", ReadSglangRequest);
  expect_fields("/get_sequence_logprobs/",
                R"({"sequences":[[1]],"prompt_lengths":[0],"top_logprobs":1})",
                ReadSequenceLogprobs);
  expect_fields("/tokenize", kChat, ReadTokenizeRequest);
  expect_fields("/detokenize", R"({"tokens":[1]})", ReadDetokenizeRequest);
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
  TeacherOptions options;
  options.api_key = {"first key", "second key"};
  options.api_key_file = "keys.txt";
  TeacherOptions shown = options.WithoutSecrets();
  const json config = json::parse(ConfigJson(DescribeSettings(shown)));
  EXPECT_EQ(config["api_key"], json({"(redacted)", "(redacted)"}));
  EXPECT_EQ(config["api_key_file"], "keys.txt");
  EXPECT_EQ(config["port"], 8000);
  EXPECT_EQ(config["grpc_reflection"], false);
}

}  // namespace
}  // namespace taopd::testing
