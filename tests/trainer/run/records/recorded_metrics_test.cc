// Tests of where a resumed run cuts its records.
#include "trainer/run/records/recorded_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr char kSteps[] =
    "{\"step\": 0, \"eval/x\": 5.0}\n{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 1}\n";
constexpr char kEvaluation[] = "{\"step\": 2, \"eval/x\": 4.0}\n";
constexpr char kOldSample[] = "{\"step\": 0}\n";
constexpr char kSamples[] = "{\"step\": 2, \"id\": 1}\n{\"step\": 2, \"id\": 2}\n";

struct Case {
  std::string metrics, samples;
  bool has_evaluation;
  size_t metrics_bytes, samples_bytes;
  size_t num_values;
};

TEST(RecordedMetrics, KeepsAnEvaluationThatIsCompleteAndNothingElse) {
  const std::string steps = kSteps, old = kOldSample, evaluation = kEvaluation;
  const size_t known = steps.size(), old_size = old.size();
  const std::string next = "{\"step\": 3, \"loss\": 1}\n";
  const Case cases[] = {
      // Nothing came after the checkpoint.
      {steps, old, false, known, old_size, 1},
      // There are samples without the line of metrics, so the evaluation was not completed.
      {steps, old + kSamples, false, known, old_size, 1},
      {steps + evaluation.substr(0, 10), old + kSamples, false, known, old_size, 1},
      {steps + evaluation, old + kSamples, true, known + evaluation.size(),
       old_size + sizeof(kSamples) - 1, 2},
      // Later steps go, with their evaluations.
      {steps + evaluation + next + "{\"step\": 3, \"eval/x\": 3.0}\n",
       old + kSamples + "{\"step\": 3}\n", true, known + evaluation.size(),
       old_size + sizeof(kSamples) - 1, 2},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    WriteFile(dir.File("metrics.jsonl"), c.metrics);
    WriteFile(dir.File("samples.jsonl"), c.samples);
    ASSERT_OK_AND_ASSIGN(const RecordedMetrics record,
                         ReadRecordedMetrics(dir.path(), 2, static_cast<int64_t>(known),
                                             static_cast<int64_t>(old_size), "eval/x"));
    EXPECT_EQ(record.has_evaluation, c.has_evaluation) << c.metrics;
    EXPECT_EQ(record.metrics_bytes, static_cast<int64_t>(c.metrics_bytes)) << c.metrics;
    EXPECT_EQ(record.samples_bytes, static_cast<int64_t>(c.samples_bytes)) << c.samples;
    EXPECT_EQ(record.values.size(), c.num_values) << c.metrics;
    EXPECT_EQ(record.values[0], (std::pair<int64_t, double>(0, 5.0)));
  }
}

// With eval.mode beside, an evaluation is recorded after lines of later steps.
TEST(RecordedMetrics, KeepsEvaluationsBehindLaterSteps) {
  const std::string steps = kSteps, old = kOldSample;
  const std::string three = "{\"step\": 3, \"loss\": 1}\n", four = "{\"step\": 4, \"loss\": 1}\n";
  const std::string one = "{\"step\": 1, \"eval/x\": 4.5}\n", two = kEvaluation;
  const std::string later = "{\"step\": 4, \"eval/x\": 2.0}\n";
  const std::string sample_one = "{\"step\": 1, \"id\": 1}\n", sample_four = "{\"step\": 4}\n";
  const TempDir dir;
  WriteFile(dir.File("metrics.jsonl"), steps + one + three + four + two + later);
  WriteFile(dir.File("samples.jsonl"), old + sample_one + sample_four + kSamples);
  const auto read = [&] {
    return ReadRecordedMetrics(dir.path(), 2, static_cast<int64_t>(steps.size()),
                               static_cast<int64_t>(old.size()), "eval/x");
  };
  ASSERT_OK_AND_ASSIGN(RecordedMetrics record, read());
  EXPECT_EQ(record.metrics_bytes, static_cast<int64_t>((steps + one).size()));
  EXPECT_EQ(record.later_metrics, two);
  EXPECT_EQ(record.samples_bytes, static_cast<int64_t>((old + sample_one).size()));
  EXPECT_EQ(record.later_samples, kSamples);
  EXPECT_EQ(record.evaluated, (std::set<int64_t>{0, 1, 2}));
  EXPECT_TRUE(record.has_evaluation);
  EXPECT_EQ(record.values, (std::vector<std::pair<int64_t, double>>{{0, 5.0}, {1, 4.5}, {2, 4.0}}));

  ASSERT_OK(KeepLaterRecords(dir.path(), &record));
  const std::string metrics = steps + one + two, samples = old + sample_one + kSamples;
  EXPECT_EQ(ReadFile(dir.File("metrics.jsonl")), metrics);
  EXPECT_EQ(ReadFile(dir.File("samples.jsonl")), samples);
  EXPECT_EQ(record.metrics_bytes, static_cast<int64_t>(metrics.size()));
  EXPECT_EQ(record.samples_bytes, static_cast<int64_t>(samples.size()));
  // Another rank reads the files after that.
  ASSERT_OK_AND_ASSIGN(const RecordedMetrics other, read());
  EXPECT_EQ(other.metrics_bytes, record.metrics_bytes);
  EXPECT_EQ(other.values, record.values);
  EXPECT_TRUE(other.later_metrics.empty());
}

// Nothing of an evaluation is kept whose line of metrics is missing.
TEST(RecordedMetrics, SamplesWithoutTheirLineAreCut) {
  const std::string steps = kSteps, old = kOldSample;
  const TempDir dir;
  WriteFile(dir.File("metrics.jsonl"),
            steps + "{\"step\": 3, \"loss\": 1}\n" + "{\"step\": 1, \"eval/x\": 4.5}\n");
  WriteFile(dir.File("samples.jsonl"), old + "{\"step\": 1, \"id\": 1}\n" + kSamples);
  ASSERT_OK_AND_ASSIGN(const RecordedMetrics record,
                       ReadRecordedMetrics(dir.path(), 2, static_cast<int64_t>(steps.size()),
                                           static_cast<int64_t>(old.size()), "eval/x"));
  EXPECT_EQ(record.evaluated, (std::set<int64_t>{0, 1}));
  EXPECT_FALSE(record.has_evaluation);
  EXPECT_EQ(record.samples_bytes,
            static_cast<int64_t>((old + "{\"step\": 1, \"id\": 1}\n").size()));
  EXPECT_TRUE(record.later_samples.empty());
}

// The checkpoint was written after the evaluation, because a stop was requested.
TEST(RecordedMetrics, AnEvaluationThatTheCheckpointKnowsCounts) {
  const TempDir dir;
  const std::string metrics = Concat(kSteps, kEvaluation);
  WriteFile(dir.File("metrics.jsonl"), metrics);
  ASSERT_OK_AND_ASSIGN(
      const RecordedMetrics record,
      ReadRecordedMetrics(dir.path(), 2, static_cast<int64_t>(metrics.size()), 0, ""));
  EXPECT_TRUE(record.has_evaluation);
  EXPECT_EQ(record.metrics_bytes, static_cast<int64_t>(metrics.size()));
  EXPECT_TRUE(record.values.empty());
  EXPECT_OK(ReadRecordedMetrics(dir.File("nowhere"), 0, 0, 0, "").status());
}

// A power loss may cut any number of bytes at the end, down to the whole file.
TEST(RecordedMetrics, AFileThatIsTooShortIsCutAfterItsLastLine) {
  const std::string steps = kSteps, samples = kSamples;
  for (size_t size = 0; size < steps.size(); ++size) {
    const TempDir dir;
    WriteFile(dir.File("metrics.jsonl"), steps.substr(0, size));
    ::testing::internal::CaptureStderr();
    const auto record = ReadRecordedMetrics(dir.path(), 2, static_cast<int64_t>(steps.size()),
                                            static_cast<int64_t>(samples.size()), "eval/x");
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_OK(record);
    const size_t newline = steps.substr(0, size).rfind('\n');
    const size_t cut = newline == std::string::npos ? 0 : newline + 1;
    EXPECT_EQ(record->metrics_bytes, static_cast<int64_t>(cut)) << size;
    EXPECT_EQ(record->values.size(), cut > 0 ? 1u : 0u) << size;
    const auto num_lines =
        std::count(steps.begin(), steps.begin() + static_cast<int64_t>(cut), '\n');
    EXPECT_THAT(log, HasSubstr(Concat("missing_bytes=", steps.size() - cut,
                                      " from_step=", num_lines, " to_step=2")));
    EXPECT_EQ(record->samples_bytes, 0) << "the file is missing";
    EXPECT_THAT(log, HasSubstr(Concat("missing_bytes=", samples.size())));
  }
}

}  // namespace
}  // namespace taopd::testing
