// Tests of other kinds of teachers, several teachers, and the score cache, with the real programs.
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerTeachersTest : public TrainerTest {
 protected:
  std::string WeightsOf(const std::string& run) {
    return FileHash(dir_.File(run + "/model/model.safetensors"));
  }
  std::string RunDir(const std::string& run) { return Concat("run.dir=", dir_.File(run)); }
};

// The tail is derived from the top-k, so the losses differ only by rounding.
TEST_F(TrainerTeachersTest, VllmsApiGivesTheSameLosses) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::vector<std::string> common = {"trainer.total_steps=20", "trainer.save_every=0"};
  std::string output;
  std::vector<std::string> settings = common;
  settings.push_back(RunDir("grpc"));
  ASSERT_EQ(Train(teacher.endpoint(), &output, settings), 0) << output;
  settings = common;
  settings.push_back(RunDir("http"));
  const std::string http = Concat("\"vllm+http://127.0.0.1:", teacher.http_port(), "\"");
  ASSERT_EQ(Train(http, &output, settings), 0) << output;
  EXPECT_THAT(output, HasSubstr("the teacher sends no tail"));
  const std::vector<double> grpc_losses = Losses(dir_.File("grpc"));
  const std::vector<double> http_losses = Losses(dir_.File("http"));
  ASSERT_EQ(grpc_losses.size(), 20u);
  ASSERT_EQ(http_losses.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(http_losses[i], grpc_losses[i], 1e-3) << i;
  EXPECT_GT(LastMetric("http", "policy/derived_tails"), 0);
  EXPECT_EQ(LastMetric("grpc", "policy/derived_tails"), 0);
  const std::string endpoint = Concat("teacher/127_0_0_1_", teacher.http_port(), "/");
  EXPECT_GT(LastMetric("http", endpoint + "bytes_received"), 0);
  EXPECT_GT(LastMetric("http", endpoint + "latency_s"), 0);
}

TEST_F(TrainerTeachersTest, WhatVllmCannotDoIsRefusedAtTheStart) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::string http = Concat("\"vllm+http://127.0.0.1:", teacher.http_port(), "\"");
  const auto expect_refused = [&](const std::string& setting, int code, const std::string& says) {
    std::string output;
    EXPECT_EQ(Train(http, &output, {setting}), code) << output;
    EXPECT_THAT(output, HasSubstr(says));
  };
  expect_refused("objective.support=student", 64, "takes no candidates");
  expect_refused("objective.name=full", 64, "sends no dense log-probs");
  expect_refused("objective.name=entropy_aware", 64, "the teacher's entropy");
  expect_refused("teacher.temperature=0.5", 64, "supports only 1");
}

TEST_F(TrainerTeachersTest, ARunIsReplayedFromTheCache) {
  const std::string cache = Concat("teacher.cache_dir=", dir_.File("cache"));
  std::string endpoint, output;
  {
    TeacherProcess teacher(dir_, teacher_model_);
    endpoint = teacher.endpoint();
    ASSERT_EQ(Train(endpoint, &output, {RunDir("first"), cache}), 0) << output;
    teacher.process().Signal(SIGKILL);
    teacher.process().Wait();
  }
  ASSERT_EQ(Train(endpoint, &output, {RunDir("replay"), cache, "teacher.cache_only=true"}), 0)
      << output;
  EXPECT_EQ(LastMetric("replay", "teacher/cache_misses"), 0);
  EXPECT_GT(LastMetric("replay", "teacher/cache_hits"), 0);
  EXPECT_EQ(WeightsOf("replay"), WeightsOf("first"));
  EXPECT_EQ(Losses(dir_.File("replay")), Losses(dir_.File("first")));
  // Another run requests scores that are not in the cache.
  EXPECT_EQ(
      Train(endpoint, &output, {RunDir("other"), cache, "teacher.cache_only=true", "run.seed=12"}),
      65)
      << output;
  EXPECT_THAT(output, HasSubstr("not in the cache"));
}

TEST_F(TrainerTeachersTest, ScoreFillsTheCacheAndBenchMeasures) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const std::vector<std::string> score = {
      "score",       "--input",         dir_.File("pairs.jsonl"), "--teacher", teacher.endpoint(),
      "--cache-dir", dir_.File("cache")};
  ASSERT_EQ(Run(score, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("sequences\t24\n"));
  EXPECT_THAT(output, HasSubstr("from_teacher\t24\n"));
  ASSERT_EQ(Run(score, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("from_cache\t24\n"));
  WriteFile(dir_.File("bad.jsonl"), "{\"prompt_ids\":[1],\"response_ids\":[-1]}\n");
  EXPECT_EQ(
      Run({"score", "--input", dir_.File("bad.jsonl"), "--cache-dir", dir_.File("cache")}, &output),
      65);
  EXPECT_THAT(output, HasSubstr("bad.jsonl:1"));

  const std::string json_path = dir_.File("bench.json");
  for (const std::string& load : {std::string("--concurrency"), std::string("--rate")}) {
    ASSERT_EQ(Run({"bench-teacher", "--teacher", teacher.endpoint(), load, "20", "--requests", "30",
                   "--prompt-tokens", "4:9", "--response-tokens", "8", "--json", json_path},
                  &output),
              0)
        << output;
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
  TeacherProcess math(dir_, teacher_model_), web(dir_, teacher_model_);
  const auto teachers = [&](const std::string& math_sources, const std::string& weight) {
    return Concat("teachers: [{name: math, endpoints: [\"", math.endpoint(), "\"], sources: [",
                  math_sources, "]}, {name: web, endpoints: [\"", web.endpoint(),
                  "\"], sources: [web], weight: ", weight, "}]\n");
  };
  const std::vector<std::string> train = {"train", "--config",          dir_.File("train.yaml"),
                                          "--set", "eval.measure=none", "--set"};
  const auto run = [&](const std::string& name, std::string* output) {
    std::vector<std::string> arguments = train;
    arguments.push_back(RunDir(name));
    return Run(arguments, output);
  };
  std::string output;
  WriteTrainConfig(Concat("teacher: {endpoints: [\"", math.endpoint(), "\"]}\n"));
  ASSERT_EQ(run("one", &output), 0) << output;
  WriteTrainConfig(teachers("math", "1"));
  ASSERT_EQ(run("two", &output), 0) << output;
  EXPECT_EQ(WeightsOf("two"), WeightsOf("one"));
  for (const auto& [name, port] :
       {std::pair("math", math.grpc_port()), std::pair("web", web.grpc_port())}) {
    EXPECT_GT(LastMetric("two", Concat("teacher/", name, "/127_0_0_1_", port, "/attempts")), 0);
  }
  WriteTrainConfig(teachers("math", "0"));
  ASSERT_EQ(run("weighted", &output), 0) << output;
  EXPECT_NE(WeightsOf("weighted"), WeightsOf("one"));

  WriteTrainConfig(teachers("math", "1, revision: another"));
  EXPECT_EQ(run("pinned", &output), 64);
  EXPECT_THAT(output, HasSubstr(Concat(web.endpoint(), " serves the revision \"")));
  EXPECT_THAT(output, HasSubstr("\" instead of \"another\", which the configuration asks for"));
  WriteTrainConfig(teachers("mathematics", "1"));
  EXPECT_EQ(run("unknown", &output), 64);
  EXPECT_THAT(output, HasSubstr("no teacher has the source \"math\" of data.train"));
  WriteTrainConfig(teachers("math, mth", "1"));
  EXPECT_EQ(run("absent", &output), 64);
  EXPECT_THAT(output, HasSubstr("the source \"mth\" of math does not occur in data.train (did you "
                                "mean \"math\"?)"));
}

}  // namespace
}  // namespace taopd::testing
