// The plan of the student's head of kernels/cuda against an enumeration of all plans.
#include "kernels/cuda/head/fused_head_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace taopd {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

TEST(FusedHeadPlan, GivesMostOfALargeWorkspaceToE) {
  FusedHeadProblem problem;
  problem.num_rows = 8192;
  problem.hidden_size = 2048;
  problem.vocabulary_size = 151936;
  problem.targets.k = 16;
  problem.objective = FindObjective("ta_opd").value();
  const int64_t budget = 1500 * kMegabyte;
  const FusedHeadPlan plan = PlanFusedHead(problem, budget);
  EXPECT_LE(plan.bytes, budget);
  EXPECT_GE(plan.chunk_rows, 2731);  // at most three chunks
  EXPECT_EQ(plan.chunk_rows % plan.logits_rows, 0);
  EXPECT_GE(plan.logits_rows, 256);
}

// Reads of lm_head for each run of logits rows, and the reads and writes of lm_head and its
// float32 gradient for each chunk, in multiples of lm_head's bfloat16 bytes.
double PlanTraffic(const FusedHeadProblem& problem, int64_t chunk_rows, int64_t logits_rows) {
  const int64_t runs = (problem.num_rows + logits_rows - 1) / logits_rows;
  const int64_t chunks = (problem.num_rows + chunk_rows - 1) / chunk_rows;
  return static_cast<double>(runs) + 5.0 * static_cast<double>(chunks);
}

// The plan tries only powers of two of logits rows, and takes long chunks before long runs.
constexpr double kPlanTolerance = 1.4;

TEST(FusedHeadPlan, ReadsLittleMoreThanTheBestOfAllPlans) {
  for (const int64_t vocabulary_size : {32000, 151936}) {
    for (const int64_t hidden_size : {1024, 4096}) {
      for (const int64_t megabytes : {64, 128, 256, 512, 1024, 2048}) {
        FusedHeadProblem problem;
        problem.dtype = DataType::kBFloat16;
        problem.num_rows = 4096;
        problem.hidden_size = hidden_size;
        problem.vocabulary_size = vocabulary_size;
        problem.targets.k = 16;
        problem.objective = FindObjective("ta_opd").value();
        const FusedHeadPlan plan = PlanFusedHead(problem, megabytes * kMegabyte);
        const cuda::Mode mode = cuda::ModeOf(problem);
        double best = std::numeric_limits<double>::infinity();
        for (int64_t logits_rows = 1; logits_rows <= 1024; ++logits_rows) {
          for (int64_t runs = 1; runs * logits_rows <= problem.num_rows; ++runs) {
            const int64_t chunk_rows = runs * logits_rows;
            if (cuda::LayOut(problem, mode, chunk_rows, logits_rows, nullptr).bytes >
                megabytes * kMegabyte) {
              break;
            }
            best = std::min(best, PlanTraffic(problem, chunk_rows, logits_rows));
          }
        }
        EXPECT_LE(PlanTraffic(problem, plan.chunk_rows, plan.logits_rows), kPlanTolerance * best)
            << vocabulary_size << " ids, hidden size " << hidden_size << ", " << megabytes
            << " MiB: chunks of " << plan.chunk_rows << ", " << plan.logits_rows
            << " rows of logits";
      }
    }
  }
}

}  // namespace
}  // namespace taopd
