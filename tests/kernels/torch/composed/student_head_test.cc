// The composition of the student's head against the CPU's kernels: losses, metrics and gradients.
// The tests of the head in tests/kernels/torch/head, which compare it with autograd in float64, run
// with the composition as well (kernels_composed in tests/kernels/CMakeLists.txt).
#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/torch/head_problem.h"
#include "tests/support/scoped_kernels.h"

namespace taopd::testing {
namespace {

struct HeadRun {
  HeadOutput output;
  at::Tensor d_lm_head;
};

HeadRun RunHead(const Problem& problem, const HeadOptions& options, KernelChoice choice) {
  const ScopedKernels kernels(choice);
  HeadRun run;
  run.d_lm_head = at::zeros(problem.lm_head.sizes());
  run.output =
      StudentHead(problem.hidden, problem.lm_head, problem.targets, options, run.d_lm_head);
  return run;
}

void ExpectLikeTheKernels(const Problem& problem, const HeadOptions& options, double tolerance,
                          const std::string& what) {
  const HeadRun custom = RunHead(problem, options, KernelChoice::Custom());
  const HeadRun composed = RunHead(problem, options, KernelChoice::Composed());
  ExpectClose(composed.output.loss_N, custom.output.loss_N.to(at::kDouble), kFloatTolerance,
              what + ": loss");
  const at::Tensor expected = custom.output.metrics_NM, actual = composed.output.metrics_NM;
  EXPECT_TRUE(at::equal(at::isnan(actual), at::isnan(expected))) << what << ": metrics";
  ExpectClose(at::nan_to_num(actual), at::nan_to_num(expected).to(at::kDouble), kFloatTolerance,
              what + ": metrics");
  ExpectGradientClose(composed.output.d_hidden_NH, custom.output.d_hidden_NH.to(at::kDouble),
                      tolerance, what + ": d hidden");
  ExpectHeadGradientClose(composed.d_lm_head, custom.d_lm_head.to(at::kDouble), problem.targets,
                          tolerance, what + ": d lm_head");
}

TEST(ComposedStudentHead, MatchesTheCpuKernelsForEveryObjective) {
  for (const ObjectiveInfo& info : kObjectives) {
    const bool whole = info.needs & kNeedsFullVocabulary;
    Problem problem = MakeProblem(7, 16, 301, whole ? 301 : 9, 3);
    problem.targets.behavior_log_probs_N = problem.targets.teacher_sampled_log_probs_N - 0.5;
    HeadOptions options = OptionsFor(std::string(info.name));
    options.temperature = 0.7;
    options.top_k_metrics = true;
    if (!whole) {
      // Supports of 9, 5 and 1 ids; some ids at their ends are padding.
      problem.targets.support_ids_Nk[1].narrow(0, 5, 4).fill_(-1);
      problem.targets.support_ids_Nk[2].narrow(0, 1, 8).fill_(-1);
      problem.targets.teacher_log_tail_N = at::Tensor();
    }
    const std::string what(info.name);
    ExpectLikeTheKernels(problem, options, kFloatTolerance, what);
    problem.hidden = problem.hidden.to(at::kBFloat16);
    problem.lm_head = problem.lm_head.to(at::kBFloat16);
    ExpectLikeTheKernels(problem, options, 2 * kBfloat16OutputTolerance, what + ", bfloat16");
  }
}

// Logits that are far apart, and a tail that underflows.
TEST(ComposedStudentHead, ExtremeLogits) {
  Problem problem = MakeProblem(4, 1, 40, 3, 7);
  problem.hidden = at::tensor({80.0f, -300.0f, 3000.0f, 0.0f}).unsqueeze(1);
  ExpectLikeTheKernels(problem, OptionsFor("ta_opd"), kFloatTolerance, "large");
}

}  // namespace
}  // namespace taopd::testing
