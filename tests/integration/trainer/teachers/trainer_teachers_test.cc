// Tests of other kinds of teachers, several teachers, and the score cache, with the real programs.
#include <absl/strings/str_format.h>

#include <filesystem>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using TrainerTeachersTest = TrainerTest;

// The tail is derived from the top-k, so the losses differ only by rounding. The largest difference
// seen in 20 steps is 3e-7.
constexpr double kRounding = 1e-5;

TEST_F(TrainerTeachersTest, VllmsApiGivesTheSameLosses) {
  const Strings common = {"trainer.total_steps=20", "trainer.save_every=0"};
  ASSERT_TRUE(Trains(Joined(common, {RunDir("grpc")})));
  ASSERT_TRUE(Trains(Joined(common, {Endpoints(teacher().vllm_endpoint()), RunDir("http")})));
  EXPECT_THAT(output_, HasSubstr("the teacher sends no tail"));
  const std::vector<double> grpc = Losses("grpc"), http = Losses("http");
  ASSERT_EQ(grpc.size(), 20u);
  ASSERT_EQ(http.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(http[i], grpc[i], kRounding) << i;
  EXPECT_GT(LastMetric("http", "policy/derived_tails"), 0);
  EXPECT_EQ(LastMetric("grpc", "policy/derived_tails"), 0);
  const std::string endpoint = Concat("teacher/127_0_0_1_", teacher().http_port(), "/");
  EXPECT_GT(LastMetric("http", endpoint + "bytes_received"), 0);
  EXPECT_GT(LastMetric("http", endpoint + "latency_s"), 0);
}

TEST_F(TrainerTeachersTest, WhatVllmCannotDoIsRefusedAtTheStart) {
  const std::string http = Endpoints(teacher().vllm_endpoint());
  const auto expect_refused = [&](const std::string& setting, int code, const std::string& says) {
    ExpectTrainFails({http, setting}, code, says);
  };
  expect_refused("objective.support=student", 64, "takes no candidates");
  expect_refused("objective.name=full", 64, "sends no dense log-probs");
  expect_refused("objective.name=entropy_aware", 64, "the teacher's entropy");
  expect_refused("teacher.temperature=0.5", 64, "supports only 1");
}

TEST_F(TrainerTeachersTest, ARunIsReplayedFromTheCache) {
  StartTeacher(stories_);
  const std::string cache = Concat("teacher.cache_dir=", dir_.File("cache"));
  ASSERT_TRUE(Trains({RunDir("first"), cache}));
  teacher().Kill();
  ASSERT_TRUE(Trains({RunDir("replay"), cache, "teacher.cache_only=true"}));
  EXPECT_EQ(LastMetric("replay", "teacher/cache_misses"), 0);
  EXPECT_GT(LastMetric("replay", "teacher/cache_hits"), 0);
  EXPECT_EQ(WeightsOf("replay"), WeightsOf("first"));
  ExpectSameLosses("replay", "first");
  // Another run requests scores that are not in the cache.
  ExpectTrainFails({RunDir("other"), cache, "teacher.cache_only=true", "run.seed=12"}, 65,
                   "not in the cache");
}

TEST_F(TrainerTeachersTest, ScoreFillsTheCacheAndBenchMeasures) {
  const Strings score = {
      "score",       "--input",         dir_.File("pairs.jsonl"), "--teacher", teacher().endpoint(),
      "--cache-dir", dir_.File("cache")};
  ASSERT_TRUE(Runs(score));
  EXPECT_THAT(output_, HasSubstr("sequences\t24\n"));
  EXPECT_THAT(output_, HasSubstr("from_teacher\t24\n"));
  ASSERT_TRUE(Runs(score));
  EXPECT_THAT(output_, HasSubstr("from_cache\t24\n"));
  ExpectFails(Joined(score, {"--set", "teacher.cache_gb=1e-6"}), 64,
              "teacher.cache_gb 1e-06 is too small");
  // Files where the folders of entries should be.
  std::filesystem::create_directories(dir_.File("full"));
  for (int i = 0; i < 256; ++i) WriteFile(dir_.File(absl::StrFormat("full/%02x", i)), "");
  Strings full = score;
  full.back() = dir_.File("full");
  ExpectFails(full, 74, "24 entries could not be written");
  WriteFile(dir_.File("bad.jsonl"), "{\"prompt_ids\":[1],\"response_ids\":[-1]}\n");
  ExpectFails({"score", "--input", dir_.File("bad.jsonl"), "--cache-dir", dir_.File("cache")}, 65,
              "bad.jsonl:1");

  const std::string json_path = dir_.File("bench.json");
  for (const std::string& load : {std::string("--concurrency"), std::string("--rate")}) {
    ASSERT_TRUE(
        Runs({"bench-teacher", "--teacher", teacher().endpoint(), load, "20", "--requests", "30",
              "--prompt-tokens", "4:9", "--response-tokens", "8", "--json", json_path}));
    const auto json = nlohmann::json::parse(ReadFile(json_path));
    EXPECT_EQ(json.at("requests"), 30);
    EXPECT_EQ(json.at("verified"), 30);
    EXPECT_GT(json.at("latency_ms").at("p50"), 0);
    EXPECT_GT(json.at("scored_tokens_per_s"), 0);
    EXPECT_GT(json.at("bytes_received_per_scored_token"), 16 * 8);
    EXPECT_TRUE(json.at("errors").empty());
  }
}

// The two teachers are the same model at two places, so the run equals that with a single teacher.
TEST_F(TrainerTeachersTest, EachSourceHasItsTeacher) {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    rows += Concat("{\"prompt_ids\":[1,", 10 + i, "],\"data_source\":\"", i % 2 ? "math" : "web",
                   "\"}\n");
  }
  WriteFile(dir_.File("prompts.jsonl"), rows);
  ServingTeacher math(stories_), web(stories_);
  const auto teachers = [&](const std::string& math_sources, const std::string& weight) {
    return Concat("teachers: [{name: math, endpoints: [\"", math.endpoint(), "\"], sources: [",
                  math_sources, "]}, {name: web, endpoints: [\"", web.endpoint(),
                  "\"], sources: [web], weight: ", weight, "}]\n");
  };
  const auto train = [&](const std::string& run) {
    return With({"train", "--config", dir_.File("train.yaml")}, {"eval.measure=none", RunDir(run)});
  };
  WriteTrainConfig(Concat("teacher: {endpoints: [\"", math.endpoint(), "\"]}\n"));
  ASSERT_TRUE(Runs(train("one")));
  WriteTrainConfig(teachers("math", "1"));
  ASSERT_TRUE(Runs(train("two")));
  EXPECT_EQ(WeightsOf("two"), WeightsOf("one"));
  for (const auto& [name, port] :
       {std::pair("math", math.grpc_port()), std::pair("web", web.grpc_port())}) {
    EXPECT_GT(LastMetric("two", Concat("teacher/", name, "/127_0_0_1_", port, "/attempts")), 0);
  }
  WriteTrainConfig(teachers("math", "0"));
  ASSERT_TRUE(Runs(train("weighted")));
  EXPECT_NE(WeightsOf("weighted"), WeightsOf("one"));

  WriteTrainConfig(teachers("math", "1, revision: another"));
  ExpectFails(train("pinned"), 64, Concat(web.endpoint(), " serves the revision \""));
  EXPECT_THAT(output_, HasSubstr("\" instead of \"another\", which the configuration asks for"));
  WriteTrainConfig(teachers("mathematics", "1"));
  ExpectFails(train("unknown"), 64, "no teacher has the source \"math\" of data.train");
  WriteTrainConfig(teachers("math, mth", "1"));
  ExpectFails(train("absent"), 64,
              "the source \"mth\" of math does not occur in data.train (did you "
              "mean \"math\"?)");
}

}  // namespace
}  // namespace taopd::testing
