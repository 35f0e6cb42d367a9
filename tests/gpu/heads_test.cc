// The heads on CUDA tensors through the kernels, against float64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/head_problem.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/scoring_problem.h"

namespace taopd::testing {
namespace {

// Two orders of float32 sums, relative to the largest element.
constexpr double kGpuFloatTolerance = 2e-5;
// Gradients of bfloat16 inputs, against float64 on the same inputs: E, the scaled hidden states and
// d hidden are rounded to bfloat16, 2^-9 of each.
constexpr double kGpuBfloat16Tolerance = 1e-2;

Problem OnDevice(Problem problem) {
  problem.hidden = problem.hidden.to(at::kCUDA);
  problem.lm_head = problem.lm_head.to(at::kCUDA);
  for (at::Tensor* tensor : problem.targets.Tensors()) {
    if (tensor->defined()) *tensor = tensor->to(at::kCUDA);
  }
  return problem;
}

// Loss and gradients against autograd in float64 on the same inputs, metrics against the CPU's
// head.
TEST(GpuHeads, StudentMatchesAutogradForEveryObjective) {
  for (const ObjectiveInfo& info : kObjectives) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (int64_t k : {1, 16, 1024, 1500}) {
        const bool full = info.traits & kNeedsFullVocabulary;
        const int64_t vocab_size = full ? 1111 : 20011;
        const Problem problem =
            WithType(MakeProblem(7, 64, vocab_size, full ? vocab_size : k, 1), dtype);
        HeadOptions options = OptionsFor(std::string(info.name));
        options.top_k_metrics = !full;
        const std::string what = std::string(info.name) + ", k " + std::to_string(k);
        const HeadRun run = RunHead(OnDevice(problem), options);
        ExpectMatchesOracle(run, problem, options, kGpuFloatTolerance,
                            dtype == at::kFloat ? kGpuFloatTolerance : kGpuBfloat16Tolerance, what);
        ExpectMetricsClose(run.output.metrics_NM, RunHead(problem, options).output.metrics_NM,
                           kGpuFloatTolerance, what);
      }
    }
  }
}

TEST(GpuHeads, WrongIdsAreNamed) {
  const auto run = [](const Problem& problem) { RunHead(OnDevice(problem), HeadOptions()); };
  Problem p = MakeProblem(3, 8, 40, 3, 1);
  run(p);
  p.targets.support_ids_Nk[1][2] = 40;
  ExpectThrows("support_ids holds ids outside", [&] { run(p); });
  p.targets.support_ids_Nk[1][2] = p.targets.support_ids_Nk[1][0];
  ExpectThrows("support_ids holds an id twice", [&] { run(p); });
  p = MakeProblem(3, 8, 40, 3, 1);
  p.targets.sampled_ids_N[0] = -1;
  ExpectThrows("sampled_ids holds ids outside", [&] { run(p); });
}

// float16 and candidates always take the composition; the kernel computes the rest. The logits are
// exact: hidden is the identity, and the other columns of lm_head are zero.
TEST(GpuHeads, ScoringMatchesFloat64) {
  constexpr int64_t kRows = 9, kHidden = 64, kVocabulary = 20011;
  const at::Tensor hidden_NH = at::eye(kRows, kHidden);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor logits_NV =
        (RandomTensor({kRows, kVocabulary}, 1) * 4).to(dtype).to(at::kFloat);
    const at::Tensor lm_head_VH = at::mm(logits_NV.t(), hidden_NH);
    for (int32_t k : {0, 1, 16, 128, 1024}) {
      for (bool with_candidates : {false, true}) {
        const at::Tensor sampled = RandomIds({kRows}, kVocabulary, 2);
        const at::Tensor candidates =
            with_candidates ? RandomIds({kRows, 5}, kVocabulary, 3) : at::Tensor();
        const ScoringOptions options = {
            .top_k = k, .temperature = 0.8, .entropy = true, .rank = true};
        const ScoringOutput output =
            ScoreRowsOfHead(hidden_NH.to(at::kCUDA, dtype), lm_head_VH.to(at::kCUDA, dtype),
                            sampled, candidates, options);
        ExpectMatchesFloat64(output, logits_NV, sampled, candidates, options,
                             "k " + std::to_string(k));
      }
    }
  }
}

// Read as float32, a float16 tensor would be read beyond its end.
TEST(GpuHeads, Float16HasNoGradient) {
  const Problem problem = OnDevice(WithType(MakeProblem(3, 8, 40, 3, 1), at::kHalf));
  EXPECT_THROW(RunHead(problem, HeadOptions()), c10::Error);
}

}  // namespace
}  // namespace taopd::testing
