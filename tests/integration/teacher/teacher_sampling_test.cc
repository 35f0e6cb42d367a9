// Tests of generation by the real taopd-teacher: seeds, choices, sampling fields and their
// defaults.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

using TeacherSamplingTest = TeacherBinaryFixture;

TEST_F(TeacherSamplingTest, ChoicesAreThoseOfFollowingSeeds) {
  Start();
  json body = {{"prompt", {1}}, {"max_tokens", 30}, {"temperature", 1.3},      {"seed", 5},
               {"logprobs", 3}, {"n", 3},           {"return_token_ids", true}};
  json choices = json::parse(Complete(body)->body)["choices"];
  ASSERT_EQ(choices.size(), 3u);
  body["n"] = 1;
  for (int i = 0; i < 3; ++i) {
    body["seed"] = 5 + i;
    json single = json::parse(Complete(body)->body)["choices"][0];
    single["index"] = i;
    EXPECT_EQ(choices[i], single);  // log-probs, too
  }
  EXPECT_NE(choices[0]["token_ids"], choices[1]["token_ids"]);
  body.erase("seed");
  body["prompt"] = {{1}, {1}};
  choices = json::parse(Complete(body)->body)["choices"];
  EXPECT_NE(choices[0]["token_ids"], choices[1]["token_ids"]);
}

TEST_F(TeacherSamplingTest, SamplingFieldsAreObeyed) {
  Start();
  json body = {{"prompt", {1, 403, 407}},
               {"max_tokens", 40},
               {"temperature", 1.5},
               {"ignore_eos", true},
               {"return_token_ids", true}};
  const auto ids_with = [&](const char* field, const json& value) {
    json with = body;
    with[field] = value;
    return json::parse(BodyOf(Complete(with)))["choices"][0]["token_ids"].get<std::vector<int>>();
  };
  for (const int id : ids_with("allowed_token_ids", {400, 401}))
    EXPECT_TRUE(id == 400 || id == 401) << id;
  EXPECT_EQ(ids_with("min_p", 1), ids_with("top_k", 1));
  EXPECT_EQ(ids_with("top_k", 1), ids_with("temperature", 0));
  const std::vector<int> greedy = ids_with("temperature", 0);
  body["temperature"] = 0;
  for (const int id : ids_with("logit_bias", {{std::to_string(greedy[0]), -100}}))
    EXPECT_NE(id, greedy[0]);
  EXPECT_NE(ids_with("repetition_penalty", 2), greedy);
  EXPECT_NE(ids_with("frequency_penalty", 2), greedy);
  EXPECT_NE(ids_with("presence_penalty", 2), greedy);
  EXPECT_EQ(ids_with("max_tokens", 100000).size(), 512u - 3u);  // cut to the context
}

TEST_F(TeacherSamplingTest, GenerationConfigHasTheDefaults) {
  const TempDir dir;
  std::filesystem::copy(StoriesModel(), dir.path(), std::filesystem::copy_options::recursive);
  WriteFile(dir.File("generation_config.json"), R"({"top_k": 1, "temperature": 0.9})");
  // The sample of this seed differs from the greedy one; without a seed, one sample in some
  // hundreds would be greedy.
  const json body = {{"prompt", {1}}, {"max_tokens", 30}, {"return_token_ids", true}, {"seed", 1}};
  const auto ids_of = [&](const std::vector<std::string>& flags) {
    Start(flags, dir.path());
    const json answer = json::parse(BodyOf(Complete(body)));
    return answer["choices"][0]["token_ids"].get<std::vector<uint32_t>>();
  };
  const Golden golden = LoadGolden();
  const std::vector<uint32_t> greedy(golden.ids.begin() + 1, golden.ids.begin() + 31);
  EXPECT_EQ(ids_of({}), greedy);
  EXPECT_NE(ids_of({"--generation-config", "vllm"}), greedy);
}

}  // namespace
}  // namespace taopd::testing
