#include "trainer/optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

OptimizerConfig Schedule(LrSchedule schedule, int64_t warmup_steps, double min_lr_ratio) {
  return {
      .lr = 2.0, .schedule = schedule, .warmup_steps = warmup_steps, .min_lr_ratio = min_lr_ratio};
}

TEST(LearningRate, WarmsUpLinearly) {
  const OptimizerConfig config = Schedule(LrSchedule::kConstant, 4, 0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 10), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 3, 10), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 9, 10), 2.0);
}

TEST(LearningRate, LinearAndCosineEndAtTheRatio) {
  for (const LrSchedule schedule : {LrSchedule::kLinear, LrSchedule::kCosine}) {
    const std::string name = NameOf(schedule);
    const OptimizerConfig config = Schedule(schedule, 2, 0.1);
    EXPECT_DOUBLE_EQ(LearningRate(config, 2, 12), 2.0) << name;
    EXPECT_NEAR(LearningRate(config, 11, 12), 0.2, 1e-12) << name;
    for (int64_t step = 3; step < 12; ++step) {
      EXPECT_LT(LearningRate(config, step, 12), LearningRate(config, step - 1, 12)) << name << step;
    }
  }
  // Half-way the linear schedule is at (1 + 0.1) / 2, and the cosine as well by symmetry.
  EXPECT_NEAR(LearningRate(Schedule(LrSchedule::kLinear, 0, 0.1), 5, 11), 1.1, 1e-12);
  EXPECT_NEAR(LearningRate(Schedule(LrSchedule::kCosine, 0, 0.1), 5, 11), 1.1, 1e-12);
}

TEST(LearningRate, OneStepRunsAreFinite) {
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(LrSchedule::kLinear, 0, 0), 0, 1), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(LrSchedule::kCosine, 5, 0), 0, 1), 0.4);
}

}  // namespace
}  // namespace taopd::testing
