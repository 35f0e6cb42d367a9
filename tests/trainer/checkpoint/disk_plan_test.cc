#include "trainer/checkpoint/disk_plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/io/disk_space.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(DiskPlan, WarnsAndRefusesOnlyWhereNotOneCheckpointFits) {
  DiskPlan plan = {.checkpoint_bytes = 100, .model_bytes = 30, .num_checkpoints = 3};
  ASSERT_EQ(plan.total_bytes(), 330);
  const auto check = [&](int64_t free_bytes, bool refuses) {
    ::testing::internal::CaptureStderr();
    const absl::Status status = CheckDiskPlan(plan, "RUN", free_bytes, refuses);
    return std::make_pair(status, ::testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(check(330, true), std::make_pair(absl::OkStatus(), std::string()));
  EXPECT_ERROR(check(329, true).first, kResourceExhausted, "take 330 bytes, and the disk has 329");
  EXPECT_OK(check(329, false).first);
  EXPECT_THAT(check(100, false).second, HasSubstr("take 330 bytes"));
  EXPECT_ERROR(check(99, false).first, kResourceExhausted,
               "a checkpoint takes 100 bytes, and the disk has 99 free");
  // The bytes that a resumed run already has reduce the total, but not the need of the next
  // checkpoint.
  plan.held_bytes = 230;
  EXPECT_EQ(check(100, true).first, absl::OkStatus());
  EXPECT_FALSE(check(99, false).first.ok());
  // An old run is deleted first.
  plan.held_bytes = 0;
  plan.freed_bytes = 330;
  EXPECT_EQ(check(0, true).first, absl::OkStatus());
}

TEST(DiskPlan, CountsWhatARunHoldsAtOnce) {
  DiskUse use{.weight_bytes = 20,
              .state_bytes = 120,
              .checkpoints = {.keep_last = 3, .keep_every = 4},
              .max_pinned = 2,
              .total_steps = 100};
  const DiskPlan plan = PlanDisk(use);
  EXPECT_EQ(plan.model_bytes, 20);
  EXPECT_EQ(plan.checkpoint_bytes, 140);
  EXPECT_EQ(plan.num_checkpoints, 1 + 3 + 2 + 25);
  EXPECT_THAT(DiskPlanText(plan, "RUN", 5000),
              HasSubstr("disk of run.dir RUN: 31 checkpoints of 140 bytes (kept, pinned and being "
                        "written) and the model take 4360 bytes"));
  EXPECT_THAT(DiskPlanText(plan, "RUN", 5000), HasSubstr("5000 bytes (0.0 MiB) are free"));
  EXPECT_THAT(DiskPlanText(plan, "RUN", std::nullopt), HasSubstr("an unknown number are free"));
  // One for each step, the one before the first step included.
  use.total_steps = 4;
  EXPECT_EQ(PlanDisk(use).num_checkpoints, 5);
}

// The weights for rollout.endpoints are on the disk of run.dir, or on their own.
TEST(DiskPlan, CountsTheWeightsForServersOfRollouts) {
  DiskPlan plan = PlanDisk({.weight_bytes = 20, .total_steps = 0, .num_published = 3});
  ASSERT_EQ(plan.total_bytes(), 20 + 20 + 3 * 20);
  EXPECT_THAT(DiskPlanText(plan, "RUN", 5000),
              HasSubstr("3 versions of the weights of 20 bytes for rollout.endpoints and the model "
                        "take 100 bytes"));
  EXPECT_OK(CheckDiskPlan(plan, "RUN", 100, /*refuses=*/true));
  EXPECT_ERROR(CheckDiskPlan(plan, "RUN", 99, /*refuses=*/true), kResourceExhausted, "3 versions");
  // Even where a warning suffices, a checkpoint and one version must fit.
  EXPECT_OK(CheckDiskPlan(plan, "RUN", 40, /*refuses=*/false));
  EXPECT_ERROR(CheckDiskPlan(plan, "RUN", 39, /*refuses=*/false), kResourceExhausted,
               "a checkpoint and the weights for rollout.endpoints take 40 bytes");
  plan.weights_dir = "/elsewhere";
  EXPECT_EQ(plan.total_bytes(), 40);
  EXPECT_OK(CheckDiskPlan(plan, "RUN", 40, /*refuses=*/true));
  EXPECT_THAT(DiskPlanText(plan, "RUN", 5000), HasSubstr("rollout.weights_dir /elsewhere: 3"));
  EXPECT_OK(CheckWeightsDisk(plan, 60, /*refuses=*/true));
  EXPECT_ERROR(CheckWeightsDisk(plan, 59, /*refuses=*/true), kResourceExhausted,
               "rollout.weights_dir /elsewhere");
  EXPECT_OK(CheckWeightsDisk(plan, 20, /*refuses=*/false));
  EXPECT_ERROR(CheckWeightsDisk(plan, 19, /*refuses=*/false), kResourceExhausted,
               "choose another rollout.weights_dir");
}

TEST(DiskPlan, FindsTheWeightsThatAKilledRunHasLeft) {
  const TempDir dir;
  for (const char* name : {"weights-rank-0/step-1", "weights-rank-1/step-1", "checkpoints"}) {
    std::filesystem::create_directories(dir.File(name));
    WriteFile(dir.File(name + std::string("/file")), "12345");
  }
  EXPECT_EQ(PublishedBytesIn(dir.path()), 10);
  EXPECT_EQ(PublishedBytesIn(dir.File("nowhere")), 0);
}

TEST(DiskAttempts, NamesTheRoomOnlyIfItIsKnown) {
  const TempDir dir;
  EXPECT_THAT(DiskAttempts(dir.path()).Failed(7, DataLoss("torn")).ToString(),
              HasSubstr(" bytes ("));
  DiskAttempts unknown("/proc/self");
  EXPECT_ERROR(unknown.Failed(7, DataLoss("torn")), kDataLoss,
               "/proc/self needs 7 bytes and has an unknown number free");
  EXPECT_TRUE(unknown.MayFit(7));
}

TEST(DiskSpace, CountsFilesAndAsksForAPathThatIsNotThere) {
  const TempDir dir;
  std::filesystem::create_directories(dir.File("a/b"));
  WriteFile(dir.File("a/b/one"), std::string(1000, 'x'));
  WriteFile(dir.File("a/two"), "x");
  EXPECT_EQ(BytesOnDisk(dir.File("a")), 1001);
  EXPECT_EQ(BytesOnDisk(dir.File("a/two")), 1);
  EXPECT_EQ(BytesOnDisk(dir.File("nowhere")), 0);
  EXPECT_TRUE(FreeDiskBytes(dir.File("not/there/yet")).has_value());
  EXPECT_TRUE(AreOnOneDisk(dir.File("a"), dir.File("not/there/yet")));
  EXPECT_FALSE(AreOnOneDisk(dir.File("a"), "/proc/self"));
}

}  // namespace
}  // namespace taopd::testing
