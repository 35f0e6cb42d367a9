// The workspace of the student's head on a GPU, through the calls of the emulated run-time.
// fused_head_test.cc and self_check_test.cc check the numbers.
#include "kernels/torch/head/cuda_heads.h"

#include <gtest/gtest.h>

#include <string>

#include "taopd/head/logit_chunk.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/head_problem.h"

namespace taopd::testing {
namespace {

// The workspace of the last call of Record, and the plan that it holds.
int64_t recorded_bytes = 0;
FusedHeadPlan recorded_plan;

std::string Record(const FusedHeadProblem& problem, const FusedHeadResult&,
                   const DeviceContext& context) {
  recorded_bytes = context.workspace_bytes;
  recorded_plan = PlanFusedHead(problem, context.workspace_bytes);
  return "";
}

TEST(StudentHeadCuda, WorksOnAtLeast512RowsAtATime) {
  DeviceKernels kernels = LinkedKernels();
  kernels.fused_head = Record;
  const Problem problem = MakeProblem(2000, 4, 3000, 4, 1);
  HeadOptions options = OptionsFor("ta_opd");
  const auto run = [&](int64_t workspace_bytes) {
    options.workspace_bytes = workspace_bytes;
    StudentHeadCuda(problem.hidden, problem.lm_head, problem.targets, options, at::Tensor(),
                    kernels);
  };
  const int64_t least = StudentHeadBytesOnGpu(kMinStudentRows, 4, 3000, sizeof(float));
  run(1);
  EXPECT_GE(recorded_plan.chunk_rows, kMinStudentRows);
  EXPECT_LE(recorded_bytes, least);
  // A larger workspace is used as it is.
  const int64_t chunk_rows = recorded_plan.chunk_rows;
  run(3 * least);
  EXPECT_GT(recorded_plan.chunk_rows, chunk_rows);
  EXPECT_GT(recorded_bytes, least);
  EXPECT_LE(recorded_bytes, 3 * least);
}

TEST(StudentHeadCuda, RefusesWhatIsLeftToTheComposition) {
  HeadOptions options = OptionsFor("ta_opd");
  options.top_k_metrics = true;
  for (const int64_t k : {1024, 1025}) {
    const Problem p = MakeProblem(2, 4, 1100, k, 1);
    const auto run = [&] { StudentHeadCuda(p.hidden, p.lm_head, p.targets, options, {}); };
    EXPECT_EQ(StudentKernelTakes(options, k), k == 1024);
    k == 1024 ? run() : ExpectThrows("top_k_metrics takes at most 1024", run);
  }
}

}  // namespace
}  // namespace taopd::testing
