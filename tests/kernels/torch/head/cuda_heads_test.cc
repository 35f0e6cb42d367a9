// The workspace of the student's head on a GPU, through the calls of the emulated run-time.
// fused_head_test.cc and self_check_test.cc check the numbers.
#include "kernels/torch/head/cuda_heads.h"

#include <gtest/gtest.h>

#include <string>

#include "taopd/head/logit_chunk.h"

namespace taopd::testing {
namespace {

struct Rows {
  at::Tensor hidden_NH, lm_head_VH;
  HeadTargets targets;
  HeadOptions options;
};

Rows RandomRows(int64_t num_rows, int64_t hidden_size, int64_t vocab_size, int64_t k) {
  at::manual_seed(1);
  Rows rows;
  rows.hidden_NH = at::randn({num_rows, hidden_size});
  rows.lm_head_VH = at::randn({vocab_size, hidden_size});
  rows.targets.support_ids_Nk =
      at::arange(k, at::kInt).unsqueeze(0).expand({num_rows, k}).contiguous();
  rows.targets.teacher_log_probs_Nk = at::full({num_rows, k}, -3.0);
  rows.targets.sampled_ids_N = at::zeros({num_rows}, at::kInt);
  rows.targets.row_weights_N = at::ones({num_rows});
  rows.options.objective = FindObjective("ta_opd").value();
  return rows;
}

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
  Rows rows = RandomRows(2000, 4, 3000, 4);
  const auto run = [&](int64_t workspace_bytes) {
    rows.options.workspace_bytes = workspace_bytes;
    StudentHeadCuda(rows.hidden_NH, rows.lm_head_VH, rows.targets, rows.options, at::Tensor(),
                    kernels);
  };
  const int64_t least = StudentHeadBytesOnGpu(kLeastStudentRows, 4, 3000, sizeof(float));
  run(1);
  EXPECT_GE(recorded_plan.chunk_rows, kLeastStudentRows);
  EXPECT_LE(recorded_bytes, least);
  // A larger workspace is used as it is.
  const int64_t chunk_rows = recorded_plan.chunk_rows;
  run(3 * least);
  EXPECT_GT(recorded_plan.chunk_rows, chunk_rows);
  EXPECT_GT(recorded_bytes, least);
  EXPECT_LE(recorded_bytes, 3 * least);
}

}  // namespace
}  // namespace taopd::testing
