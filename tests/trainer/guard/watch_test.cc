// Tests of the small parts around the collapse guard: the best evaluation, the wall-time limit, the
// save interval and roll-backs.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/guard/best_evaluation.h"
#include "trainer/guard/rollbacks.h"
#include "trainer/guard/wall_time.h"

namespace taopd::testing {
namespace {

TEST(BestEvaluation, CountsEvaluationsSinceTheBest) {
  for (const bool smallest : {true, false}) {
    const double sign = smallest ? 1 : -1;
    BestEvaluation best(smallest);
    EXPECT_EQ(best.step(), std::nullopt);
    EXPECT_FALSE(best.Observe(0, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_TRUE(best.Observe(5, sign * 3));
    EXPECT_FALSE(best.Observe(10, sign * 3));  // an equal value is not better
    EXPECT_FALSE(best.Observe(15, sign * 4));
    EXPECT_EQ(best.num_since_best(), 2);
    EXPECT_TRUE(best.Observe(20, sign * 2));
    EXPECT_EQ(best.num_since_best(), 0);
    EXPECT_EQ(best.step(), 20);
    EXPECT_EQ(best.value(), sign * 2);
  }
}

TEST(WallTimeLimit, LeavesRoomForAStepAndACheckpoint) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  WallTimeLimit limit(start, absl::Seconds(100));
  EXPECT_FALSE(limit.IsUp(start + absl::Seconds(500))) << "the first step is always allowed";
  limit.ObserveStep(absl::Seconds(10));
  limit.ObserveStep(absl::Seconds(7));
  EXPECT_FALSE(limit.IsUp(start + absl::Seconds(90)));
  EXPECT_TRUE(limit.IsUp(start + absl::Seconds(91)));
  limit.ObserveSave(absl::Seconds(5));
  EXPECT_FALSE(limit.IsUp(start + absl::Seconds(85)));
  EXPECT_TRUE(limit.IsUp(start + absl::Seconds(86)));
  EXPECT_EQ(limit.EndOfPause(), start + absl::Seconds(85));
  WallTimeLimit none(start, absl::ZeroDuration());
  none.ObserveStep(absl::Seconds(10));
  EXPECT_FALSE(none.IsUp(start + absl::Hours(1000)));
}

TEST(WallTimeLimit, APartNeedsRoomForASaveOnly) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  WallTimeLimit limit(start, absl::Seconds(100));
  limit.ObserveStep(absl::Seconds(50));
  limit.ObserveSave(absl::Seconds(10));
  EXPECT_FALSE(limit.MustSaveNow(start + absl::Seconds(90)));
  EXPECT_TRUE(limit.MustSaveNow(start + absl::Seconds(91)));
  EXPECT_FALSE(WallTimeLimit(start, absl::ZeroDuration()).MustSaveNow(start + absl::Hours(9)));
}

TEST(SaveInterval, CountsFromTheLastCheckpoint) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  SaveInterval interval(start, absl::Minutes(15));
  EXPECT_FALSE(interval.IsDue(start + absl::Seconds(899)));
  EXPECT_TRUE(interval.IsDue(start + absl::Seconds(900)));
  interval.Saved(start + absl::Seconds(600));  // a checkpoint for another reason
  EXPECT_FALSE(interval.IsDue(start + absl::Seconds(1499)));
  EXPECT_TRUE(interval.IsDue(start + absl::Seconds(1500)));
  EXPECT_FALSE(SaveInterval(start, absl::ZeroDuration()).IsDue(start + absl::Hours(1000)));
}

TEST(Rollbacks, ReadBackWhatWasWritten) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const Rollbacks none, ReadRollbacks(dir.path()));
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(none.lr_factor, 1);
  ASSERT_OK(WriteRollbacks({2, 0.25}, dir.path()));
  ASSERT_OK_AND_ASSIGN(const Rollbacks some, ReadRollbacks(dir.path()));
  EXPECT_EQ(some.count, 2);
  EXPECT_EQ(some.lr_factor, 0.25);
  // A roll-back that has begun counts if the run continues from its checkpoint or before.
  EXPECT_FALSE(some.SkipsAt(0)) << "the record has no position";
  Rollbacks next = some.Next(0.5, 1, 24);
  next.to_step = 4;
  ASSERT_OK(WriteRollbacks(some, dir.path(), next));
  for (const int64_t step : {0, 3, 4, 5, 6}) {
    ASSERT_OK_AND_ASSIGN(const Rollbacks begun, ReadRollbacks(dir.path(), step));
    EXPECT_EQ(begun.count, step <= 4 ? 3 : 2) << step;
    EXPECT_EQ(begun.lr_factor, step <= 4 ? 0.125 : 0.25) << step;
    EXPECT_EQ(begun.SkipsAt(step), step <= 4) << step;
    if (step <= 4) {
      EXPECT_EQ(std::pair(begun.epoch, begun.epoch_index), std::pair(1L, 24L));
    }
  }
  ASSERT_OK(WriteRollbacks(some, dir.path()));
  ASSERT_OK_AND_ASSIGN(const Rollbacks settled, ReadRollbacks(dir.path(), 4));
  EXPECT_EQ(settled.count, 2);
  WriteFile(dir.File("rollbacks.json"),
            "{\"count\": 1, \"lr_factor\": 1, \"intent\": {\"to_step\": 1}}");
  EXPECT_ERROR(ReadRollbacks(dir.path()), kDataLoss, "to_step");
  WriteFile(dir.File("rollbacks.json"), "{\"count\": 1}");
  EXPECT_ERROR(ReadRollbacks(dir.path()), kDataLoss, "lr_factor");
}

}  // namespace
}  // namespace taopd::testing
