#include "trainer/report/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReadRunTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    testing::WriteFile(dir_.File(name), text);
  }
  absl::StatusOr<RunRecord> Read() const { return ReadRun(dir_.path()); }
  const testing::TempDir dir_;
};

TEST_F(ReadRunTest, AllThatARunLeaves) {
  Write("metrics.jsonl",
        "{\"step\":1,\"time\":100.5,\"loss/mean\":0.5,\"eval/n\":10}\n\n"
        "{\"step\":2,\"time\":110,\"loss/mean\":null,\"non_finite\":[\"loss/mean\"]}\n");
  Write("summary.json", "{\"teacher_accuracy\":0.75,\"model\":\"x\",\"kl_after\":null}");
  Write("config.yaml", "seed: 1\n");
  Write("samples.jsonl",
        "{\"step\":0,\"when\":\"before\",\"prompt\":\"p\",\"response\":\"r\",\"answer\":\"7\","
        "\"correct\":false}\n"
        "{\"step\":2,\"when\":\"eval\",\"prompt\":\"p\",\"response\":\"r\",\"answer\":null}\n");
  ASSERT_OK_AND_ASSIGN(const RunRecord run, Read());
  const Series* loss = run.Find("loss/mean");
  ASSERT_NE(loss, nullptr);
  ASSERT_EQ(loss->size(), 2u);
  EXPECT_EQ((*loss)[0].value, 0.5);
  EXPECT_EQ((*loss)[1].step, 2);
  EXPECT_TRUE(std::isnan((*loss)[1].value));
  EXPECT_EQ(run.Find("optim/lr"), nullptr);
  EXPECT_EQ(run.first_time_s, 100.5);
  EXPECT_EQ(run.last_time_s, 110);
  EXPECT_EQ(run.Summary("teacher_accuracy"), 0.75);
  EXPECT_EQ(run.Summary("kl_after"), std::nullopt);
  EXPECT_EQ(run.config_yaml, "seed: 1\n");
  EXPECT_EQ(run.SettingValue("seed"), "1");
  ASSERT_EQ(run.samples.size(), 2u);
  EXPECT_EQ(run.samples[0].when, Sample::When::kBefore);
  EXPECT_EQ(run.samples[0].answer, "7");
  EXPECT_EQ(run.samples[0].correct, false);
  EXPECT_EQ(run.samples[1].answer, std::nullopt);
  EXPECT_TRUE(run.notes.empty());
}

TEST_F(ReadRunTest, OnlyNullsCountAsNotRecorded) {
  Write("metrics.jsonl", "{\"step\":1,\"loss/mean\":null}\n");
  ASSERT_OK_AND_ASSIGN(const RunRecord run, Read());
  EXPECT_EQ(run.Find("loss/mean"), nullptr);
  EXPECT_FALSE(run.RecordedAnything());
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("no values")));
}

TEST_F(ReadRunTest, AHalfWrittenLastLineIsANoteAndAWholeOneCountsWithoutItsLineBreak) {
  Write("metrics.jsonl", "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":");
  ASSERT_OK_AND_ASSIGN(RunRecord run, Read());
  EXPECT_EQ(run.Find("a")->size(), 1u);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("metrics.jsonl line 2 is only half written")));
  Write("metrics.jsonl", "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}");
  ASSERT_OK_AND_ASSIGN(run, Read());
  EXPECT_EQ(run.Find("a")->size(), 2u);
  EXPECT_TRUE(run.notes.empty());
}

TEST_F(ReadRunTest, RepeatedStepsKeepTheLastValueAndAreNoted) {
  Write("metrics.jsonl",
        "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n{\"step\":3,\"a\":3}\n"
        "{\"step\":2,\"a\":20}\n{\"step\":3,\"a\":30}\n");
  ASSERT_OK_AND_ASSIGN(const RunRecord run, Read());
  ASSERT_EQ(run.Find("a")->size(), 3u);
  EXPECT_EQ((*run.Find("a"))[1].value, 20);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("2 step(s) between 2 and 3")));
}

TEST_F(ReadRunTest, DamagedLinesNameFileAndLine) {
  const std::string good = "{\"step\":1,\"a\":1}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"step\":2,\"a\":\n", "not JSON"},
      {"[1]\n", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{\"a\":1}\n", "\"step\" is missing"},
      {"{\"step\":1.5}\n", "\"step\" is not an integer"},
      {"{\"step\":-1}\n", "\"step\" is -1"},
      {"{\"step\":18446744073709551615}\n", "which is not a step"},
      {"{\"step\":2,\"a\":\"x\"}\n", "\"a\" is not a number"},
      {"{\"step\":2,\"time\":null}\n", "\"time\" is not a number"},
      {"{\"step\":2,\"a\":1,\"a\":2}\n", "duplicate key"},
      {Concat(std::string(200, '['), "\n"), "nested"},
  };
  for (const auto& [line, message] : cases) {
    Write("metrics.jsonl", good + line);
    EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, message);
    EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, dir_.File("metrics.jsonl:2"));
  }
}

TEST_F(ReadRunTest, DamagedSamplesNameFileAndLine) {
  Write("metrics.jsonl", "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"step\":1,\"when\":\"before\",\"prompt\":\"p\"}\n", "\"response\" is missing"},
      {"{\"step\":1,\"when\":\"then\",\"prompt\":\"p\",\"response\":\"r\"}\n", "\"then\""},
      {"{\"step\":1,\"when\":\"eval\",\"prompt\":3,\"response\":\"r\"}\n",
       "\"prompt\" is not a text"},
      {"{\"step\":1,\"when\":\"eval\",\"prompt\":\"p\",\"response\":\"r\",\"correct\":1}\n",
       "\"correct\" is not true or false"},
  };
  for (const auto& [line, message] : cases) {
    Write("samples.jsonl", line);
    EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, message);
    EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, dir_.File("samples.jsonl:1"));
  }
}

TEST_F(ReadRunTest, ADamagedSummaryIsAnError) {
  Write("metrics.jsonl", "");
  Write("summary.json", "{\"teacher_accuracy\":");
  EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, "summary.json");
  Write("summary.json", "{\"student_accuracy_after_low\":\"high\"}");
  EXPECT_ERROR(Read(), absl::StatusCode::kDataLoss, "student_accuracy_after_low");
}

TEST_F(ReadRunTest, ASummaryOrTheFinalModelEndsARun) {
  Write("metrics.jsonl", "{\"step\":1,\"a\":1}\n");
  EXPECT_FALSE(Read()->has_ended);
  std::filesystem::create_directories(dir_.File("model"));
  EXPECT_FALSE(Read()->has_ended) << "the model is being written";
  for (const std::string file : {"model/config.json", "model/adapter_config.json"}) {
    Write(file, "{}");
    EXPECT_TRUE(Read()->has_ended) << file;
    std::filesystem::remove(dir_.File(file));
  }
  Write("summary.json", "{}");
  EXPECT_TRUE(Read()->has_ended);
  Write("continued", "");
  EXPECT_FALSE(Read()->has_ended);
}

TEST_F(ReadRunTest, AConfigurationThatIsNoYamlIsANote) {
  Write("metrics.jsonl", "{\"step\":1,\"a\":1}\n");
  Write("config.yaml", "run:\n  name: [\n");
  ASSERT_OK_AND_ASSIGN(const RunRecord run, Read());
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("config.yaml:3: not YAML")));
  EXPECT_EQ(run.config_yaml, "run:\n  name: [\n");
}

TEST_F(ReadRunTest, WithoutMetricsThereIsNoRun) {
  EXPECT_ERROR(Read(), absl::StatusCode::kNotFound, "metrics.jsonl");
}

std::vector<std::string> Names(const std::vector<std::pair<std::string, std::string>>& runs) {
  std::vector<RunRecord> records;
  for (const auto& [dir, name] : runs) {
    records.emplace_back();
    records.back().dir = dir;
    if (!name.empty()) records.back().settings = {{"run.name", name}};
  }
  NameRuns(&records);
  std::vector<std::string> names;
  for (const RunRecord& record : records) names.push_back(record.name);
  return names;
}

TEST(NameRuns, ByTheirNameOrThePartOfThePathThatDiffers) {
  EXPECT_THAT(Names({{"/x/mine", ""}}), ElementsAre("mine"));
  EXPECT_THAT(Names({{"/x/mine/", "run"}}), ElementsAre("mine"));
  EXPECT_THAT(Names({{"/x/mine", "gsm8k"}}), ElementsAre("gsm8k"));
  EXPECT_THAT(Names({{"/x/a", "first"}, {"/x/b", "second"}, {"/x/c", "run"}}),
              ElementsAre("first", "second", "c"));
  EXPECT_THAT(Names({{"r/seed-0/full/run", "same"}, {"r/seed-1/ta_opd/run", "same"}}),
              ElementsAre("seed-0/full", "seed-1/ta_opd"));
  EXPECT_THAT(Names({{"r/a/run", ""}, {"r/b/run", ""}, {"r/b/run", ""}, {"r/c/other", ""}}),
              ElementsAre("a/run", "b/run", "b/run (2)", "c/other"));
  EXPECT_THAT(Names({{"r/a", ""}, {"r/a/b", ""}}), ElementsAre("a", "a/b"));
}

}  // namespace
}  // namespace taopd::report
