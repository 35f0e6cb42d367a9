// The composition of the student's head against the CPU's kernels: losses, metrics and gradients.
// The tests of the head in tests/kernels/torch/head, which compare it with autograd in float64, run
// with the composition as well (kernels_composed in tests/kernels/CMakeLists.txt).
#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/torch/head_problem.h"
#include "tests/support/scoped_kernels.h"

namespace taopd::testing {
namespace {

void ExpectLikeTheKernels(const Problem& problem, const HeadOptions& options, double tolerance,
                          const std::string& what) {
  const HeadRun custom = RunHead(problem, options);
  const ScopedKernels kernels(KernelChoice::Composed());
  ExpectClose(RunHead(problem, options), custom, problem.targets, kFloatTolerance, tolerance, what);
}

TEST(ComposedStudentHead, MatchesTheCpuKernelsForEveryObjective) {
  for (const ObjectiveInfo& info : kObjectives) {
    const bool whole = info.traits & kNeedsFullVocabulary;
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
    ExpectLikeTheKernels(WithType(problem, at::kBFloat16), options, 2 * kBfloat16OutputTolerance,
                         what + ", bfloat16");
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
