#include "common/metrics/jsonl_sink.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::vector<nlohmann::json> ReadLines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  EXPECT_OK(ReadJsonl(path, [&](const nlohmann::json& value, int64_t) {
    lines.push_back(value);
    return absl::OkStatus();
  }));
  return lines;
}

class JsonlSinkTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = dir_.File("metrics.jsonl");
  ManualClock clock_{absl::FromUnixMillis(1767225600250)};
};

TEST_F(JsonlSinkTest, TheDocumentedLines) {
  ASSERT_OK_AND_ASSIGN(auto sink, JsonlSink::Open(path_, &clock_));
  EXPECT_OK(sink->Write(12, {{"loss/mean", 0.25},
                             {"loss/grad_norm", std::numeric_limits<double>::quiet_NaN()},
                             {"a", -std::numeric_limits<double>::infinity()}}));
  EXPECT_EQ(ReadFile(path_),
            "{\"step\":12,\"time\":1767225600.25,\"loss/mean\":0.25,\"loss/grad_norm\":null,"
            "\"a\":null,\"non_finite\":[\"loss/grad_norm\",\"a\"]}\n");
}

TEST_F(JsonlSinkTest, NumbersReadBackAsTheSameDoubles) {
  std::vector<double> values = {0.1,
                                -0.0,
                                1.0 / 3,
                                5e-324,
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::min(),
                                9007199254740993.0};
  RandomStream random(7, "round trip");
  for (int i = 0; i < 1000; ++i) {
    const double value = std::bit_cast<double>(random.NextU64());
    if (std::isfinite(value)) values.push_back(value);
  }
  ASSERT_OK_AND_ASSIGN(auto sink, JsonlSink::Open(path_, &clock_));
  for (const double value : values) EXPECT_OK(sink->Write(1, {{"v", value}}));
  const std::vector<nlohmann::json> lines = ReadLines(path_);
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(lines[i]["v"].get<double>()),
              std::bit_cast<uint64_t>(values[i]));
  }
}

TEST_F(JsonlSinkTest, AResumedRunLeavesNoLinesOfStepsDoneAgain) {
  int64_t checkpoint_bytes = 0;
  {
    ASSERT_OK_AND_ASSIGN(auto sink, JsonlSink::Open(path_, &clock_));
    EXPECT_OK(sink->Write(1, {{"v", 1}}));
    ASSERT_OK_AND_ASSIGN(checkpoint_bytes, sink->SizeBytes());
    EXPECT_OK(sink->Write(2, {{"v", 2}}));
    EXPECT_OK(sink->Write(3, {{"v", 3}}));
  }
  ASSERT_OK_AND_ASSIGN(auto sink, JsonlSink::Open(path_, &clock_, checkpoint_bytes));
  EXPECT_OK(sink->Write(2, {{"v", 20}}));
  const std::vector<nlohmann::json> lines = ReadLines(path_);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["v"], 1);
  EXPECT_EQ(lines[1]["v"], 20);
  ASSERT_OK_AND_ASSIGN(const int64_t size_bytes, sink->SizeBytes());
  EXPECT_EQ(size_bytes, static_cast<int64_t>(ReadFile(path_).size()));
}

TEST_F(JsonlSinkTest, NamesThatWouldClashAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto sink, JsonlSink::Open(path_, &clock_));
  for (const char* name : {"step", "time", "non_finite"}) {
    EXPECT_ERROR(sink->Write(1, {{name, 1}}), kInvalidArgument, name);
  }
  EXPECT_ERROR(sink->Write(1, {{"a", 1}, {"a", 2}}), kInvalidArgument, "\"a\" is written twice");
  EXPECT_EQ(ReadFile(path_), "");
  // Bad UTF-8 is replaced.
  EXPECT_OK(sink->Write(1, {{"ok \xff\xc3", 2}}));
  EXPECT_EQ(ReadLines(path_).at(0)["ok \xef\xbf\xbd\xef\xbf\xbd"], 2);
}

TEST_F(JsonlSinkTest, APathThatCannotBeOpenedIsNamed) {
  EXPECT_FALSE(JsonlSink::Open(dir_.File("no/such/metrics.jsonl"), &clock_).ok());
}

}  // namespace
}  // namespace taopd::testing
