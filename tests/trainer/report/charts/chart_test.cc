#include "trainer/report/charts/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/report/charts/run_style.h"

namespace taopd::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

RunRecord RunWith(const std::string& name, const std::string& metric, const Series& series) {
  RunRecord run;
  run.name = name;
  run.series[metric] = series;
  return run;
}

const ChartSpec kSpec = {"c", "Title", "Hint.", {{.metric = "m"}}, {}};

class ChartTest : public ::testing::Test {
 protected:
  // Appends the chart's data to data_.
  std::string Render(const std::vector<RunRecord>& runs, const ChartSpec& spec = kSpec) {
    return RenderChart(spec, runs, &data_);
  }
  Json data_ = Json::array();
};

TEST_F(ChartTest, TheLineGoesThroughThePoints) {
  const std::string html = Render({RunWith("a", "m", {{0, 0}, {10, 100}})});
  // 0 is at the base line; 100 is 4 % of the range below the top: 222 - 210 / 1.04.
  EXPECT_THAT(html, HasSubstr("<path class=\"line\" d=\"M48.0 222.0L428.0 20.1\"/>"));
  EXPECT_EQ(data_[0]["lines"][0]["x"], Json({0, 10}));
  EXPECT_EQ(data_[0]["lines"][0]["y"], Json({0.0, 100.0}));
  EXPECT_THAT(html, HasSubstr("a: from 0 at step 0 to 100 at step 10."));
}

TEST_F(ChartTest, NullsAreGapsAndLonePointsAreDots) {
  const std::string html =
      Render({RunWith("a", "m", {{0, 0}, {1, 50}, {2, kGap}, {3, 50}, {4, kGap}})});
  EXPECT_THAT(html, HasSubstr("d=\"M48.0 222.0L143.0 "));
  EXPECT_THAT(html, HasSubstr("M333.0 20.1h0\""));
  EXPECT_EQ(data_[0]["lines"][0]["y"][2], nullptr);
}

TEST_F(ChartTest, TwoRunsShareTheAxesAndDifferInColorAndMark) {
  const std::string html =
      Render({RunWith("a", "m", {{0, 0}, {10, 1}}), RunWith("b", "m", {{0, 4}, {20, 2}})});
  EXPECT_THAT(html, HasSubstr("<g class=\"run r0\" data-run=\"0\">"));
  EXPECT_THAT(html, HasSubstr("<g class=\"run r1\" data-run=\"1\">"));
  EXPECT_EQ(Count(html, "<path class=\"line\""), 2u);
  EXPECT_EQ(data_[0]["steps"], Json({0.0, 20.0}));
  EXPECT_EQ(data_[0]["lines"].size(), 2u);
  EXPECT_THAT(html, HasSubstr("L238.0 "));  // run a ends in the middle
}

TEST(RunStyle, TwelveColorsAndThenOtherMarks) {
  std::set<std::string> colors, looks;
  for (size_t run = 0; run < 12; ++run) colors.insert(RunClass(run));
  EXPECT_EQ(colors.size(), 12u);
  for (size_t run = 0; run < 72; ++run) looks.insert(RunClass(run) + RunMark(run, 0, 0));
  EXPECT_EQ(looks.size(), 72u);
}

TEST_F(ChartTest, WhatWasNotRecordedIsSaid) {
  const std::string none = Render({RunWith("a", "other", {{0, 0}})});
  EXPECT_THAT(none, HasSubstr("not recorded"));
  EXPECT_THAT(none, Not(HasSubstr("<svg")));
  EXPECT_TRUE(data_.empty());
  EXPECT_THAT(Render({RunWith("a", "m", {{0, 1}}), RunWith("b<", "other", {{0, 0}})}),
              HasSubstr("Not recorded by b&lt;."));
}

TEST_F(ChartTest, RunsThatLackTheSameAreNamedTogether) {
  ChartSpec spec = kSpec;
  spec.quantities = {{.metric = "m", .label = "first"}, {.metric = "n", .label = "second"}};
  RunRecord both = RunWith("both", "m", {{0, 1}});
  both.series["n"] = {{0, 2}};
  const std::string html =
      Render({both, RunWith("a", "other", {{0, 1}}), RunWith("b", "m", {{0, 1}}),
              RunWith("c", "other", {{0, 1}}), RunWith("silent", "other", {{0, kGap}})},
             spec);
  EXPECT_THAT(html, HasSubstr("<p>Hint. Not recorded by a, c; by b (second).</p>"));
}

TEST_F(ChartTest, ZerosOnALogScaleAreCounted) {
  ChartSpec spec = kSpec;
  spec.scale.allow_log = true;
  Series series = {{0, 0}};
  for (int64_t i = 1; i < 20; ++i) series.push_back({i, i < 10 ? 1e-4 : 1.0});
  const std::string html = Render({RunWith("a", "m", series)}, spec);
  EXPECT_THAT(html, HasSubstr("Log scale. 1 value(s) of 0 have no place on it."));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf\"")));
}

TEST_F(ChartTest, TheIntervalIsABand) {
  ChartSpec spec = kSpec;
  spec.style = ChartSpec::Style::kPoints;
  RunRecord run = RunWith("a", "m", {{0, 50}, {5, 50}, {10, 50}});
  run.series["m_low"] = {{0, 0}, {10, 0}};
  run.series["m_high"] = {{0, 100}, {10, 100}};
  const std::string html = Render({run}, spec);
  // Step 5 has no interval, so the band has two pieces.
  EXPECT_THAT(
      html,
      HasSubstr("<path class=\"band\" d=\"M48.0 20.1L48.0 222.0ZM428.0 20.1L428.0 222.0Z\"/>"));
  EXPECT_EQ(data_[0]["lines"][0]["low"], Json({0.0, nullptr, 0.0}));
}

TEST_F(ChartTest, ALongRunStaysSmall) {
  Series series;
  for (int64_t i = 0; i < 50000; ++i) series.push_back({i, static_cast<double>(i * 7919 % 1000)});
  const std::string html = Render({RunWith("a", "m", series)});
  EXPECT_LT(html.size() + data_.dump().size(), 60000u);
  EXPECT_THAT(html, HasSubstr("<path class=\"raw\""));
}

}  // namespace
}  // namespace taopd::report
