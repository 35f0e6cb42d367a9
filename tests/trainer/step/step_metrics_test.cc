#include "trainer/step/step_metrics.h"

#include <gtest/gtest.h>

#include "trainer/config/train_config.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {
namespace {

TEST(StepMetrics, ResponsesWithoutTheTeachersPromptAreAShare) {
  ScoredRollout shown, missing;
  missing.lacks_teacher_prompt = true;
  StepRecord record = {.rollouts = SumRollouts({&shown, &missing, &shown, &shown}, /*step=*/0)};
  TrainConfig config;
  EXPECT_TRUE(MakeChosenMetrics(record, config).empty());
  config.data.teacher_prompt_key = "hint";
  EXPECT_EQ(MakeChosenMetrics(record, config), (Metrics{{"teacher/prompt_missing", 0.25}}));

  ScoredRollout given = missing;
  given.rollout.is_given = true;
  record.rollouts = SumRollouts({&given, &given, &shown, &shown}, /*step=*/0);
  EXPECT_EQ(MakeChosenMetrics(record, config), (Metrics{{"teacher/prompt_missing", 0.5}}));
}

TEST(StepMetrics, RepeatedNgramsAreThoseThatOccurredBefore) {
  EXPECT_EQ(RepeatedNgrams({1, 2, 3, 4}), 0);
  EXPECT_EQ(RepeatedNgrams({1, 2, 3, 4, 5}), 0);
  EXPECT_EQ(RepeatedNgrams({7, 7, 7, 7, 7}), 0.5);
  // The last one of 1234 2341 3412 4123 1234 repeats the first.
  EXPECT_DOUBLE_EQ(RepeatedNgrams({1, 2, 3, 4, 1, 2, 3, 4}), 0.2);
}

}  // namespace
}  // namespace taopd
