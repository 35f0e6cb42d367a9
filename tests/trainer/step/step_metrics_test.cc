#include "trainer/step/step_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trainer/config/train_config.h"
#include "trainer/step/scored_rollout.h"

namespace taopd::testing {
namespace {

TEST(StepMetrics, ResponsesWithoutTheTeachersPromptAreAShare) {
  ScoredRollout shown, missing;
  missing.lacks_teacher_prompt = true;
  StepRecord record = {.rollouts = SumRollouts({&shown, &missing, &shown, &shown}, /*step=*/0)};
  TrainConfig config;
  EXPECT_TRUE(MakeOptionalMetrics(record, config).empty());
  config.data.teacher_prompt_key = "hint";
  EXPECT_EQ(MakeOptionalMetrics(record, config), (Metrics{{"teacher/prompt_missing", 0.25}}));

  ScoredRollout given = missing;
  given.rollout.is_given = true;
  record.rollouts = SumRollouts({&given, &given, &shown, &shown}, /*step=*/0);
  EXPECT_EQ(MakeOptionalMetrics(record, config), (Metrics{{"teacher/prompt_missing", 0.5}}));
}

TEST(StepMetrics, GivenResponsesHaveNoStaleness) {
  ScoredRollout generated, given;
  generated.rollout.policy_version = given.rollout.policy_version = 4;
  given.rollout.is_given = true;
  StepRecord record = {.rollouts = SumRollouts({&given, &generated, &given}, /*step=*/5)};
  const auto staleness_of = [](const StepRecord& record) {
    const PhaseTimes times(Clock::Real());
    for (const auto& [name, value] : MakeStepMetrics(record, times, {}, {})) {
      if (name == "policy/staleness") return value;
    }
    ADD_FAILURE() << "policy/staleness is missing";
    return -1.0;
  };
  EXPECT_EQ(staleness_of(record), 1);
  record.rollouts = SumRollouts({&given}, /*step=*/5);
  EXPECT_TRUE(std::isnan(staleness_of(record)));  // the mean over nothing
}

TEST(StepMetrics, RepeatedNgramsAreThoseThatOccurredBefore) {
  EXPECT_EQ(RepeatedNgrams({1, 2, 3, 4}), 0);
  EXPECT_EQ(RepeatedNgrams({1, 2, 3, 4, 5}), 0);
  EXPECT_EQ(RepeatedNgrams({7, 7, 7, 7, 7}), 0.5);
  // The last one of 1234 2341 3412 4123 1234 repeats the first.
  EXPECT_DOUBLE_EQ(RepeatedNgrams({1, 2, 3, 4, 1, 2, 3, 4}), 0.2);
}

}  // namespace
}  // namespace taopd::testing
