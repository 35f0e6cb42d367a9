// The plan of the student's head of kernels/cuda against an enumeration of all plans.
#include "kernels/cuda/head/fused_head_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "taopd/head/logit_chunk.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;
constexpr int64_t kKilobyte = int64_t{1} << 10;

FusedHeadProblem Problem(int64_t num_rows, int64_t hidden_size, int64_t vocab_size,
                         const char* objective = "ta_opd") {
  FusedHeadProblem problem;
  problem.dtype = DataType::kBFloat16;
  problem.num_rows = num_rows;
  problem.hidden_size = hidden_size;
  problem.vocab_size = vocab_size;
  problem.targets.k = 16;
  problem.objective = FindObjective(objective).value();
  return problem;
}

TEST(FusedHeadPlan, GivesMostOfALargeWorkspaceToE) {
  const int64_t budget = 1500 * kMegabyte;
  const FusedHeadPlan plan = PlanFusedHead(Problem(8192, 2048, 151936), budget);
  EXPECT_LE(plan.bytes, budget);
  EXPECT_GE(plan.chunk_rows, 2731);  // at most three chunks
  EXPECT_GE(plan.logits_rows, 512);
}

TEST(FusedHeadPlan, IsTheSameInTheWorkspaceThatItAsksFor) {
  for (const char* objective : {"ta_opd", "normalized"}) {
    for (DataType dtype : {DataType::kBFloat16, DataType::kFloat32}) {
      FusedHeadProblem problem = Problem(5000, 64, 30000, objective);
      problem.dtype = dtype;
      // The first have many chunks, of which not every number is tried.
      for (int64_t bytes = 33 * kMegabyte; bytes < 200 * kMegabyte; bytes += 500 * kKilobyte) {
        const FusedHeadPlan plan = PlanFusedHead(problem, bytes);
        const FusedHeadPlan again = PlanFusedHead(problem, plan.bytes);
        EXPECT_EQ(again.chunk_rows, plan.chunk_rows) << bytes;
        EXPECT_EQ(again.logits_rows, plan.logits_rows) << bytes;
        EXPECT_LE(plan.logits_rows, plan.chunk_rows) << bytes;
      }
    }
  }
}

// A row is all that fits, with every number of rows.
TEST(FusedHeadPlan, OneRowAtATime) {
  for (int64_t num_rows : {1, 7, 300}) {
    const FusedHeadProblem problem = Problem(num_rows, 16, 500);
    const FusedHeadPlan none = PlanFusedHead(problem, 0);
    EXPECT_EQ(none.chunk_rows, 0);
    const FusedHeadPlan one = PlanFusedHead(problem, none.bytes);
    EXPECT_EQ(one.chunk_rows, 1);
    EXPECT_EQ(one.logits_rows, 1);
    EXPECT_EQ(one.bytes, none.bytes);
    EXPECT_EQ(PlanFusedHead(problem, none.bytes - 1).chunk_rows, 0);
  }
}

// The least workspace (logit_chunk.h) holds as many rows as it says, in every type.
TEST(FusedHeadPlan, TheLeastWorkspaceHoldsItsRows) {
  for (DataType dtype : {DataType::kBFloat16, DataType::kFloat32}) {
    for (int64_t num_rows : {100, 512, 8192}) {
      for (int64_t vocab_size : {1000, 32000, 151936}) {
        FusedHeadProblem problem = Problem(num_rows, 1024, vocab_size);
        problem.dtype = dtype;
        problem.targets.k = 64;
        const int64_t rows = std::min(num_rows, kMinStudentRows);
        const int64_t bytes =
            StudentHeadBytesOnGpu(rows, problem.hidden_size, vocab_size, SizeOf(dtype));
        EXPECT_GE(PlanFusedHead(problem, bytes).chunk_rows, rows) << vocab_size;
      }
    }
  }
}

// Reads of lm_head for each run of logits rows, and the reads and writes of lm_head and its
// float32 gradient for each chunk, in multiples of lm_head's bfloat16 bytes.
double PlanTraffic(const FusedHeadProblem& problem, int64_t chunk_rows, int64_t logits_rows) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t chunks = ceil_div(problem.num_rows, chunk_rows);
  const int64_t last_rows = problem.num_rows - (chunks - 1) * chunk_rows;
  const int64_t runs =
      (chunks - 1) * ceil_div(chunk_rows, logits_rows) + ceil_div(last_rows, logits_rows);
  return static_cast<double>(runs) + 5.0 * static_cast<double>(chunks);
}

// The plan tries chunks of equal sizes only, and rounds the rows of logits to a multiple.
constexpr double kPlanTolerance = 1.1;

TEST(FusedHeadPlan, ReadsLittleMoreThanTheBestOfAllPlans) {
  for (const int64_t vocab_size : {32000, 151936}) {
    for (const int64_t hidden_size : {1024, 4096}) {
      for (const int64_t megabytes : {64, 128, 256, 512, 1024, 2048}) {
        const FusedHeadProblem problem = Problem(4096, hidden_size, vocab_size);
        const FusedHeadPlan plan = PlanFusedHead(problem, megabytes * kMegabyte);
        const cuda::HeadMode mode = cuda::HeadModeOf(problem);
        double best = std::numeric_limits<double>::infinity();
        for (int64_t logits_rows = 1; logits_rows <= 1024; ++logits_rows) {
          for (int64_t runs = 1; runs * logits_rows <= problem.num_rows; ++runs) {
            const int64_t chunk_rows = runs * logits_rows;
            if (cuda::LayOutHead(problem, mode, chunk_rows, logits_rows, nullptr).bytes >
                megabytes * kMegabyte) {
              break;
            }
            best = std::min(best, PlanTraffic(problem, chunk_rows, logits_rows));
          }
        }
        EXPECT_LE(PlanTraffic(problem, plan.chunk_rows, plan.logits_rows), kPlanTolerance * best)
            << vocab_size << " ids, hidden size " << hidden_size << ", " << megabytes
            << " MiB: chunks of " << plan.chunk_rows << ", " << plan.logits_rows
            << " rows of logits";
      }
    }
  }
}

}  // namespace
}  // namespace taopd::testing
