// The heads on CUDA tensors through the kernels: the student's against autograd in float64, the
// teacher's against the composition of ATen operations on the same device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/torch/composed/scoring_rows.h"
#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"
#include "tests/kernels/torch/head_problem.h"

namespace taopd {
namespace {

using testing::Expected;
using testing::ExpectGradientClose;
using testing::ExpectHeadGradientClose;
using testing::MakeProblem;
using testing::OptionsFor;
using testing::Oracle;
using testing::Problem;

// Two orders of float32 sums, relative to the largest element.
constexpr double kGpuFloatTolerance = 2e-5;
// Gradients of bfloat16 inputs, against float64 on the same inputs: E, the scaled hidden states and
// d hidden are rounded to bfloat16, 2^-9 of each.
constexpr double kGpuBfloat16Tolerance = 1e-2;

class GpuHeads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    at::manual_seed(1);
  }
};

Problem MakeProblemOf(at::ScalarType dtype, int64_t num_rows, int64_t hidden_size,
                      int64_t vocab_size, int64_t k) {
  Problem problem = MakeProblem(num_rows, hidden_size, vocab_size, k, /*seed=*/1);
  problem.hidden = problem.hidden.to(dtype);
  problem.lm_head = problem.lm_head.to(dtype);
  return problem;
}

Problem OnDevice(Problem problem) {
  problem.hidden = problem.hidden.to(at::kCUDA);
  problem.lm_head = problem.lm_head.to(at::kCUDA);
  for (at::Tensor* tensor : problem.targets.Tensors()) {
    if (tensor->defined()) *tensor = tensor->to(at::kCUDA);
  }
  return problem;
}

// For losses, metrics and log-probs, wherever the tensors are; NaNs must be in the same places.
void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor a = actual.to(at::kCPU, at::kDouble);
  const at::Tensor e = expected.to(at::kCPU, at::kDouble);
  ASSERT_TRUE(at::equal(a.isnan(), e.isnan())) << what;
  testing::ExpectClose(a.nan_to_num(), e.nan_to_num(), tolerance, what);
}

// Loss and gradients against autograd in float64 on the same inputs, metrics against the CPU's
// head.
TEST_F(GpuHeads, StudentMatchesAutogradForEveryObjective) {
  for (const ObjectiveInfo& info : kObjectives) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (int64_t k : {1, 16, 1024}) {
        const bool full = info.needs & kNeedsFullVocabulary;
        const int64_t vocab_size = full ? 1111 : 20011;
        const Problem on_cpu = MakeProblemOf(dtype, 7, 64, vocab_size, full ? vocab_size : k);
        const Problem p = OnDevice(on_cpu);
        HeadOptions options = OptionsFor(std::string(info.name));
        options.top_k_metrics = !full;
        const std::string what = std::string(info.name) + ", k " + std::to_string(k);

        at::Tensor d_lm_head = at::zeros(p.lm_head.sizes(), p.lm_head.options().dtype(at::kFloat));
        const HeadOutput ours = StudentHead(p.hidden, p.lm_head, p.targets, options, d_lm_head);
        const Expected expected = Oracle(on_cpu, options);
        const HeadOutput cpu =
            StudentHead(on_cpu.hidden, on_cpu.lm_head, on_cpu.targets, options, {});

        const double tolerance = dtype == at::kFloat ? kGpuFloatTolerance : kGpuBfloat16Tolerance;
        ExpectClose(ours.loss_N, expected.loss, kGpuFloatTolerance, what + ": loss");
        ExpectClose(ours.metrics_NM, cpu.metrics_NM, kGpuFloatTolerance, what + ": metrics");
        ExpectGradientClose(ours.d_hidden_NH.cpu(), expected.d_hidden, tolerance,
                            what + ": d hidden");
        ExpectHeadGradientClose(d_lm_head.cpu(), expected.d_lm_head, on_cpu.targets, tolerance,
                                what + ": d lm_head");
      }
    }
  }
}

TEST_F(GpuHeads, StudentRepeatsBitForBit) {
  const Problem p = OnDevice(MakeProblemOf(at::kFloat, 33, 48, 5003, 16));
  for (const char* name : {"ta_opd", "sc_ta_opd", "normalized"}) {
    const HeadOptions options = OptionsFor(name);
    at::Tensor first_d = at::zeros_like(p.lm_head);
    at::Tensor second_d = at::zeros_like(p.lm_head);
    const HeadOutput first = StudentHead(p.hidden, p.lm_head, p.targets, options, first_d);
    const HeadOutput second = StudentHead(p.hidden, p.lm_head, p.targets, options, second_d);
    EXPECT_TRUE(at::equal(first.loss_N, second.loss_N)) << name;
    EXPECT_TRUE(at::equal(first.d_hidden_NH, second.d_hidden_NH)) << name;
    EXPECT_TRUE(at::equal(first_d, second_d)) << name;
  }
}

TEST_F(GpuHeads, WrongIdsAreNamed) {
  const auto message = [](const Problem& p) -> std::string {
    try {
      StudentHead(p.hidden, p.lm_head, p.targets, {}, {});
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "accepted";
  };
  Problem p = MakeProblemOf(at::kFloat, 3, 8, 40, 3);
  EXPECT_EQ(message(OnDevice(p)), "accepted");
  p.targets.support_ids_Nk[1][2] = 40;
  EXPECT_NE(message(OnDevice(p)).find("support_ids holds ids outside"), std::string::npos);
  p.targets.support_ids_Nk[1][2] = p.targets.support_ids_Nk[1][0];
  EXPECT_NE(message(OnDevice(p)).find("support_ids holds an id twice"), std::string::npos);
  p = MakeProblemOf(at::kFloat, 3, 8, 40, 3);
  p.targets.sampled_ids_N[0] = -1;
  EXPECT_NE(message(OnDevice(p)).find("sampled_ids holds ids outside"), std::string::npos);
}

// float16 and candidates always take the composition; the kernel computes the rest.
TEST_F(GpuHeads, ScoringMatchesAten) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int32_t k : {0, 1, 16, 128, 1024}) {
      for (bool with_candidates : {false, true}) {
        const Problem p = OnDevice(MakeProblemOf(dtype, 9, 64, 20011, 3));
        const at::Tensor sampled = p.targets.sampled_ids_N;
        const at::Tensor candidates =
            with_candidates ? at::randint(0, 20011, {9, 5}, at::kInt) : at::Tensor();
        ScoringOptions options;
        options.top_k = k;
        options.temperature = 0.8;
        options.entropy = options.rank = true;
        const ScoringOutput ours =
            ScoreRowsOfHead(p.hidden, p.lm_head, sampled, candidates, options);
        ScoringOutput aten = ours;
        for (at::Tensor* tensor : aten.Tensors()) {
          if (tensor->defined()) *tensor = at::empty_like(*tensor);
        }
        const HeadGemm gemm(p.lm_head);
        const at::Tensor logits = at::empty({9, 20011}, p.hidden.options().dtype(at::kFloat));
        gemm.Logits(p.hidden, logits);
        ScoringRowsComposed(logits, sampled.to(at::kCPU), candidates, options, 0, &aten);
        const std::string what = "k " + std::to_string(k);
        // The two products may round logits differently, which may swap two that are nearly equal.
        const double same_ids =
            k == 0 ? 1 : ours.ids_Nk.eq(aten.ids_Nk).to(at::kDouble).mean().item<double>();
        EXPECT_GE(same_ids, 0.99) << what;
        ExpectClose(ours.log_probs_Nk, aten.log_probs_Nk, kGpuFloatTolerance, what);
        ExpectClose(ours.log_tail_N, aten.log_tail_N, kGpuFloatTolerance, what);
        ExpectClose(ours.log_sum_exp_N, aten.log_sum_exp_N, kGpuFloatTolerance, what);
        ExpectClose(ours.sampled_log_probs_N, aten.sampled_log_probs_N, kGpuFloatTolerance, what);
        ExpectClose(ours.entropy_N, aten.entropy_N, kGpuFloatTolerance, what);
        if (with_candidates) {
          ExpectClose(ours.candidate_log_probs_NM, aten.candidate_log_probs_NM, kGpuFloatTolerance,
                      what);
          ExpectClose(ours.candidate_log_tail_N, aten.candidate_log_tail_N, kGpuFloatTolerance,
                      what);
        }
        const at::Tensor rank_error = (ours.sampled_ranks_N - aten.sampled_ranks_N).abs();
        EXPECT_LE(rank_error.max().item<int32_t>(), 2) << what;
      }
    }
  }
}

// Read as float32, a float16 tensor would be read beyond its end.
TEST_F(GpuHeads, Float16HasNoGradient) {
  const Problem p = OnDevice(MakeProblemOf(at::kHalf, 3, 8, 40, 3));
  EXPECT_THROW(StudentHead(p.hidden, p.lm_head, p.targets, {}, {}), c10::Error);
}

}  // namespace
}  // namespace taopd
