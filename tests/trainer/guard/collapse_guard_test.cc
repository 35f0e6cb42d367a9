// The collapse guard is silent on a healthy run, and every guard raises its alarm on its own kind
// of collapse.
#include "trainer/guard/collapse_guard.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

Metrics Healthy() {
  return {{"policy/student_tail", 0.04},    {"policy/teacher_tail", 0.02},
          {"policy/entropy", 0.5},          {"rollout/response_length_mean", 100},
          {"rollout/repeated_ngrams", 0.1}, {"policy/kl_to_start", 0.2}};
}

Metrics With(Metrics metrics, const std::string& name, double value) {
  for (auto& [key, old] : metrics) {
    if (key == name) old = value;
  }
  return metrics;
}

// Returns the alarms after `num_healthy` healthy steps and `num_bad` steps with `metrics`.
std::vector<GuardAlarm> AfterSteps(CollapseGuard* guard, int num_healthy, const Metrics& metrics,
                                   int num_bad) {
  int64_t step = 0;
  for (int i = 0; i < num_healthy; ++i) {
    EXPECT_TRUE(guard->Observe(++step, Healthy()).empty()) << step;
  }
  std::vector<GuardAlarm> alarms;
  for (int i = 0; i < num_bad; ++i) alarms = guard->Observe(++step, metrics);
  return alarms;
}

TEST(CollapseGuard, IsSilentOnTheQuickstartsRun) {
  GuardConfig config;
  config.kl_to_start.limit = 1;
  CollapseGuard guard(config);
  std::istringstream lines(
      ReadFile(SourcePath("tests/trainer/guard/data/quickstart_metrics.jsonl")));
  int64_t num_steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    Metrics metrics;
    for (const auto& [name, value] : row.items()) metrics.emplace_back(name, value.get<double>());
    EXPECT_TRUE(guard.Observe(row["step"], metrics).empty()) << line;
    EXPECT_EQ(guard.last_good_step(), row["step"]);
    ++num_steps;
  }
  EXPECT_EQ(num_steps, 120);
}

struct FiringCase {
  const char* guard;
  const char* metric;
  double still_fine, alarming;
  GuardRuleConfig GuardConfig::*rule;
};

const FiringCase kFiringCases[] = {
    {"tail_ratio", "policy/student_tail", 0.39, 0.41, &GuardConfig::tail_ratio},
    {"low_entropy", "policy/entropy", 0.026, 0.024, &GuardConfig::low_entropy},
    {"high_entropy", "policy/entropy", 2.4, 2.6, &GuardConfig::high_entropy},
    {"long_responses", "rollout/response_length_mean", 490, 510, &GuardConfig::long_responses},
    {"short_responses", "rollout/response_length_mean", 11, 9, &GuardConfig::short_responses},
    {"repetition", "rollout/repeated_ngrams", 0.89, 0.91, &GuardConfig::repetition},
    {"kl_to_start", "policy/kl_to_start", 0.9, 1.1, &GuardConfig::kl_to_start},
};

GuardConfig AllOn() {
  GuardConfig config;
  config.kl_to_start.limit = 1;
  config.tail_ratio.limit = 10;
  return config;
}

TEST(CollapseGuard, EachGuardFiresOnItsOwnMetricAndNoOther) {
  for (const FiringCase& c : kFiringCases) {
    CollapseGuard fine(AllOn());
    EXPECT_TRUE(AfterSteps(&fine, 8, With(Healthy(), c.metric, c.still_fine), 5).empty())
        << c.guard;
    GuardConfig config = AllOn();
    (config.*c.rule).action = GuardAction::kRollBack;
    CollapseGuard guard(config);
    const auto alarms = AfterSteps(&guard, 8, With(Healthy(), c.metric, c.alarming), 3);
    ASSERT_EQ(alarms.size(), 1u) << c.guard;
    EXPECT_EQ(alarms[0].guard, c.guard);
    EXPECT_EQ(alarms[0].num_in_a_row, 3) << c.guard;
    EXPECT_EQ(alarms[0].action, GuardAction::kRollBack) << c.guard;
    EXPECT_EQ(guard.last_good_step(), 8) << c.guard;
    // A guard that is off raises no alarm.
    (config.*c.rule).limit = 0;
    CollapseGuard off(config);
    EXPECT_TRUE(AfterSteps(&off, 8, With(Healthy(), c.metric, c.alarming), 3).empty()) << c.guard;
  }
}

TEST(CollapseGuard, ActsWhenTheAlarmHasLasted) {
  for (const auto& [action, name] : NamesOf(GuardAction())) {
    GuardConfig config = {.patience = 3};
    config.high_entropy.action = action;
    const Metrics bad = With(Healthy(), "policy/entropy", 10);
    CollapseGuard guard(config);
    EXPECT_EQ(AfterSteps(&guard, 6, bad, 1)[0].action, GuardAction::kWarn);
    EXPECT_EQ(guard.Observe(8, bad)[0].action, GuardAction::kWarn);
    // One good step restarts the count.
    EXPECT_TRUE(guard.Observe(9, Healthy()).empty());
    for (int64_t step : {10, 11}) EXPECT_EQ(guard.Observe(step, bad)[0].action, GuardAction::kWarn);
    EXPECT_EQ(guard.Observe(12, bad)[0].action, action) << name;
    EXPECT_EQ(guard.last_good_step(), 9);
  }
}

TEST(CollapseGuard, ComparesWithNothingBeforeTheBaselineIsComplete) {
  const GuardConfig config = {.baseline_steps = 4};
  CollapseGuard guard(config);
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(guard.Observe(step, With(Healthy(), "policy/entropy", 1e9)).empty());
  }
  EXPECT_EQ(guard.Observe(5, Healthy())[0].guard, "low_entropy");
}

// A step without an update has NaN for its means.
TEST(CollapseGuard, NumbersThatAreNotFiniteSayNothing) {
  CollapseGuard guard((GuardConfig()));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto alarms = AfterSteps(&guard, 6, With(Healthy(), "policy/entropy", 10), 2);
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_TRUE(guard.Observe(9, With(Healthy(), "policy/entropy", nan)).empty());
  EXPECT_TRUE(guard.Observe(10, {}).empty());
  EXPECT_EQ(guard.last_good_step(), 6) << "an alarm that nothing has ended is still on";
  EXPECT_EQ(guard.Observe(11, With(Healthy(), "policy/entropy", 10))[0].num_in_a_row, 3);
}

TEST(CollapseGuard, RemembersAcrossACheckpoint) {
  const GuardConfig config = {.baseline_steps = 4};
  CollapseGuard whole(config), first(config);
  const Metrics bad = With(Healthy(), "policy/entropy", 10);
  AfterSteps(&whole, 6, bad, 2);
  AfterSteps(&first, 6, bad, 2);
  CollapseGuard second(config);
  ASSERT_OK(second.Restore(first.State()));
  EXPECT_EQ(second.State(), whole.State());
  const auto expected = whole.Observe(9, bad), actual = second.Observe(9, bad);
  ASSERT_EQ(actual.size(), 1u);
  EXPECT_EQ(actual[0].num_in_a_row, expected[0].num_in_a_row);
  EXPECT_EQ(actual[0].limit, expected[0].limit);
  // The third step of the alarm asks for a pause, until somebody ends it.
  CollapseGuard third({.high_entropy = {.limit = 5, .action = GuardAction::kPause}});
  AfterSteps(&third, 6, bad, 3);
  ASSERT_OK(second.Restore(third.State()));
  EXPECT_TRUE(second.pauses());
  auto older = nlohmann::json::parse(third.State());
  older.erase("pauses");
  ASSERT_OK(second.Restore(older.dump()));
  EXPECT_FALSE(second.pauses());
  third.Observe(10, bad);
  EXPECT_FALSE(third.pauses());
  const std::string before = second.State();
  for (const char* text : {"", "{}", "[]", R"({"last_good_step": 1})",
                           R"({"last_good_step":1,"baseline_sums":[1],"baseline_counts":[1,1,1],
                               "num_in_a_row":[0,0,0,0,0,0,0]})"}) {
    EXPECT_ERROR(second.Restore(text), kDataLoss, "collapse guard");
  }
  EXPECT_EQ(second.State(), before);
}

}  // namespace
}  // namespace taopd::testing
