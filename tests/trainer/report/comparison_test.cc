#include "trainer/report/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

namespace taopd::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Settings = std::vector<std::pair<std::string, std::string>>;

RunRecord MakeRun(const std::string& name, Settings settings, const Series& loss = {{1, 1}}) {
  RunRecord run;
  run.name = run.dir = name;
  run.settings = std::move(settings);
  run.series["loss"] = loss;
  return run;
}

std::vector<std::string> LineNames(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const RunRecord& line : comparison.lines) names.push_back(line.name);
  return names;
}

std::vector<double> Values(const RunRecord& line, const std::string& metric) {
  std::vector<double> values;
  for (const Point& point : line.series.at(metric)) values.push_back(point.value);
  return values;
}

TEST(CompareRuns, RunsThatDifferInTheirSeedAreOneLine) {
  const auto run = [](const std::string& name, const std::string& seed, const std::string& k,
                      const Series& loss) {
    return MakeRun(name,
                   {{"run.dir", name},
                    {"run.seed", seed},
                    {"objective.name", "ta_opd"},
                    {"teacher.top_k", k},
                    {"trainer.http_port", name}},
                   loss);
  };
  const Comparison comparison =
      CompareRuns({run("a", "0", "8", {{1, 1}, {2, 4}}), run("b", "0", "4", {{1, 7}}),
                   run("c", "1", "8", {{1, 3}, {2, 2}}), run("d", "1", "4", {{1, 9}})});
  EXPECT_THAT(comparison.settings, ElementsAre("teacher.top_k"));
  EXPECT_THAT(LineNames(comparison), ElementsAre("top_k=8", "top_k=4"));
  EXPECT_THAT(comparison.line_of_run, ElementsAre(0, 1, 0, 1));
  EXPECT_TRUE(comparison.HasSeeds());
  EXPECT_THAT(Values(comparison.lines[0], "loss"), ElementsAre(2, 3));
  EXPECT_THAT(Values(comparison.lines[0], "loss_low"), ElementsAre(1, 2));
  EXPECT_THAT(Values(comparison.lines[0], "loss_high"), ElementsAre(3, 4));
  EXPECT_THAT(comparison.notes, IsEmpty());
}

TEST(CompareRuns, GroupsAreNamedByWhatTellsThemApart) {
  const auto run = [](const std::string& objective, const std::string& lr,
                      const std::string& seed) {
    return MakeRun(objective + lr + seed,
                   {{"run.seed", seed}, {"objective.name", objective}, {"optimizer.lr", lr}});
  };
  const Comparison comparison = CompareRuns({run("full", "0.1", "0"), run("full", "0.1", "1"),
                                             run("full", "0.2", "0"), run("ta_opd", "0.2", "0")});
  EXPECT_THAT(LineNames(comparison), ElementsAre("full, lr=0.1", "full, lr=0.2", "ta_opd, lr=0.2"));
  // Without a second seed each run keeps its name.
  EXPECT_THAT(LineNames(CompareRuns({run("full", "0.1", "0"), run("full", "0.2", "0")})),
              ElementsAre("full0.10", "full0.20"));
}

TEST(CompareRuns, WhatIsMadeForEachSeedTellsRunsOfEqualSeedsApart) {
  const auto run = [](const std::string& name, const std::string& seed, const std::string& model) {
    return MakeRun(name, {{"run.seed", seed}, {"student.model", model}});
  };
  EXPECT_EQ(CompareRuns({run("a", "0", "m0"), run("b", "1", "m1")}).lines.size(), 1u);
  const Comparison comparison = CompareRuns(
      {run("a", "0", "m0"), run("b", "0", "m1"), run("c", "1", "m0"), run("d", "1", "m1")});
  EXPECT_THAT(comparison.settings, ElementsAre("student.model"));
  EXPECT_THAT(comparison.line_of_run, ElementsAre(0, 1, 0, 1));
}

TEST(CompareRuns, RunsThatNothingTellsApartStayApart) {
  const Settings same = {{"run.seed", "0"}, {"optimizer.lr", "1"}};
  EXPECT_THAT(LineNames(CompareRuns({MakeRun("old", same), MakeRun("new", same)})),
              ElementsAre("old", "new"));
  EXPECT_THAT(LineNames(CompareRuns({MakeRun("a", {}), MakeRun("b", {})})), ElementsAre("a", "b"));
}

TEST(CompareRuns, AMeanEndsWithTheShortestRunAndHasItsGaps) {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  const Comparison comparison =
      CompareRuns({MakeRun("a", {{"run.seed", "0"}}, {{1, 1}, {2, gap}, {3, 5}, {4, 6}}),
                   MakeRun("b", {{"run.seed", "1"}}, {{1, 3}, {2, 4}, {3, 7}})});
  ASSERT_EQ(comparison.lines.size(), 1u);
  EXPECT_EQ(comparison.lines[0].name, "run, 2 seeds");
  const std::vector<double> mean = Values(comparison.lines[0], "loss");
  ASSERT_EQ(mean.size(), 3u);
  EXPECT_EQ(mean[0], 2);
  EXPECT_TRUE(std::isnan(mean[1]));
  EXPECT_EQ(mean[2], 6);
  EXPECT_THAT(comparison.notes, ElementsAre(HasSubstr("b ends at step 3 of 4")));
}

TEST(CompareRuns, TheRangeOverSeedsReplacesTheIntervalOfEach) {
  RunRecord a = MakeRun("a", {{"run.seed", "0"}}), b = MakeRun("b", {{"run.seed", "1"}}, {{1, 2}});
  for (RunRecord* run : {&a, &b}) run->series["loss_low"] = run->series["loss_high"] = {{1, 9}};
  const Comparison comparison = CompareRuns({a, b});
  EXPECT_THAT(Values(comparison.lines[0], "loss_low"), ElementsAre(1));
  EXPECT_THAT(Values(comparison.lines[0], "loss_high"), ElementsAre(2));
}

}  // namespace
}  // namespace taopd::report
