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

// The files of a run that continues after two steps. Read gets what the checkpoint knows of them.
class RecordedMetricsTest : public ::testing::Test {
 protected:
  static int64_t SizeOf(const std::string& text) { return static_cast<int64_t>(text.size()); }
  void Write(const std::string& metrics, const std::string& samples) {
    WriteFile(dir_.File("metrics.jsonl"), metrics);
    WriteFile(dir_.File("samples.jsonl"), samples);
  }
  absl::StatusOr<RecordedMetrics> Read(const std::string& metrics, const std::string& samples) {
    return ReadRecordedMetrics(dir_.path(), 2, SizeOf(metrics), SizeOf(samples), "eval/x");
  }
  const TempDir dir_;
};

struct Case {
  std::string metrics, samples;
  bool has_evaluation;
  int64_t metrics_bytes, samples_bytes;
  size_t num_values;
};

TEST_F(RecordedMetricsTest, KeepsAnEvaluationThatIsCompleteAndNothingElse) {
  const std::string steps = kSteps, old = kOldSample, evaluation = kEvaluation;
  const int64_t known = SizeOf(steps), old_size = SizeOf(old), new_size = SizeOf(old + kSamples);
  const std::string next = "{\"step\": 3, \"loss\": 1}\n";
  const Case cases[] = {
      // Nothing came after the checkpoint.
      {steps, old, false, known, old_size, 1},
      // There are samples without the line of metrics, so the evaluation was not completed.
      {steps, old + kSamples, false, known, old_size, 1},
      {steps + evaluation.substr(0, 10), old + kSamples, false, known, old_size, 1},
      {steps + evaluation, old + kSamples, true, SizeOf(steps + evaluation), new_size, 2},
      // Later steps go, with their evaluations.
      {steps + evaluation + next + "{\"step\": 3, \"eval/x\": 3.0}\n",
       old + kSamples + "{\"step\": 3}\n", true, SizeOf(steps + evaluation), new_size, 2},
  };
  for (const Case& c : cases) {
    Write(c.metrics, c.samples);
    ASSERT_OK_AND_ASSIGN(const RecordedMetrics record, Read(steps, old));
    EXPECT_EQ(record.has_evaluation, c.has_evaluation) << c.metrics;
    EXPECT_EQ(record.metrics_bytes, c.metrics_bytes) << c.metrics;
    EXPECT_EQ(record.samples_bytes, c.samples_bytes) << c.samples;
    EXPECT_EQ(record.values.size(), c.num_values) << c.metrics;
    EXPECT_EQ(record.values[0], (std::pair<int64_t, double>(0, 5.0)));
  }
}

// With eval.mode beside, an evaluation is recorded after lines of later steps.
TEST_F(RecordedMetricsTest, KeepsEvaluationsBehindLaterSteps) {
  const std::string steps = kSteps, old = kOldSample;
  const std::string three = "{\"step\": 3, \"loss\": 1}\n", four = "{\"step\": 4, \"loss\": 1}\n";
  const std::string one = "{\"step\": 1, \"eval/x\": 4.5}\n", two = kEvaluation;
  const std::string later = "{\"step\": 4, \"eval/x\": 2.0}\n";
  const std::string sample_one = "{\"step\": 1, \"id\": 1}\n", sample_four = "{\"step\": 4}\n";
  Write(steps + one + three + four + two + later, old + sample_one + sample_four + kSamples);
  ASSERT_OK_AND_ASSIGN(RecordedMetrics record, Read(steps, old));
  EXPECT_EQ(record.metrics_bytes, SizeOf(steps + one));
  EXPECT_EQ(record.later_metrics, two);
  EXPECT_EQ(record.samples_bytes, SizeOf(old + sample_one));
  EXPECT_EQ(record.later_samples, kSamples);
  EXPECT_EQ(record.evaluated, (std::set<int64_t>{0, 1, 2}));
  EXPECT_TRUE(record.has_evaluation);
  EXPECT_EQ(record.values, (std::vector<std::pair<int64_t, double>>{{0, 5.0}, {1, 4.5}, {2, 4.0}}));

  ASSERT_OK(KeepLaterRecords(dir_.path(), &record));
  const std::string metrics = steps + one + two, samples = old + sample_one + kSamples;
  EXPECT_EQ(ReadFile(dir_.File("metrics.jsonl")), metrics);
  EXPECT_EQ(ReadFile(dir_.File("samples.jsonl")), samples);
  EXPECT_EQ(record.metrics_bytes, SizeOf(metrics));
  EXPECT_EQ(record.samples_bytes, SizeOf(samples));
  // Another rank reads the files after that.
  ASSERT_OK_AND_ASSIGN(const RecordedMetrics other, Read(steps, old));
  EXPECT_EQ(other.metrics_bytes, record.metrics_bytes);
  EXPECT_EQ(other.values, record.values);
  EXPECT_TRUE(other.later_metrics.empty());
}

// Nothing of an evaluation is kept whose line of metrics is missing.
TEST_F(RecordedMetricsTest, SamplesWithoutTheirLineAreCut) {
  const std::string steps = kSteps, old = kOldSample;
  Write(steps + "{\"step\": 3, \"loss\": 1}\n" + "{\"step\": 1, \"eval/x\": 4.5}\n",
        old + "{\"step\": 1, \"id\": 1}\n" + kSamples);
  ASSERT_OK_AND_ASSIGN(const RecordedMetrics record, Read(steps, old));
  EXPECT_EQ(record.evaluated, (std::set<int64_t>{0, 1}));
  EXPECT_FALSE(record.has_evaluation);
  EXPECT_EQ(record.samples_bytes, SizeOf(old + "{\"step\": 1, \"id\": 1}\n"));
  EXPECT_TRUE(record.later_samples.empty());
}

// The checkpoint was written after the evaluation, because a stop was requested.
TEST_F(RecordedMetricsTest, AnEvaluationThatTheCheckpointKnowsCounts) {
  const std::string metrics = Concat(kSteps, kEvaluation);
  WriteFile(dir_.File("metrics.jsonl"), metrics);
  ASSERT_OK_AND_ASSIGN(const RecordedMetrics record,
                       ReadRecordedMetrics(dir_.path(), 2, SizeOf(metrics), 0, ""));
  EXPECT_TRUE(record.has_evaluation);
  EXPECT_EQ(record.metrics_bytes, SizeOf(metrics));
  EXPECT_TRUE(record.values.empty());
  EXPECT_OK(ReadRecordedMetrics(dir_.File("nowhere"), 0, 0, 0, "").status());
}

// A power loss may cut any number of bytes at the end, down to the whole file.
TEST_F(RecordedMetricsTest, AFileThatIsTooShortIsCutAfterItsLastLine) {
  const std::string steps = kSteps, samples = kSamples;
  for (size_t size = 0; size < steps.size(); ++size) {
    WriteFile(dir_.File("metrics.jsonl"), steps.substr(0, size));
    ::testing::internal::CaptureStderr();
    const auto record = Read(steps, samples);
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
