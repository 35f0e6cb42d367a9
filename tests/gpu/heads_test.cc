// The heads on CUDA tensors through the kernels, against the composition of ATen operations on the
// same device and against the same call on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/torch/gemm/head_gemm.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/scoring_rows_aten.h"
#include "kernels/torch/head/student_head.h"
#include "kernels/torch/head/student_rows_aten.h"

namespace taopd {
namespace {

// Two orders of float32 sums, relative to the largest element.
constexpr double kFloatTolerance = 2e-5;
// Gradients of bfloat16 inputs: both sides round the logits' gradient to bfloat16, ours the scaled
// hidden states too.
constexpr double kBfloat16Tolerance = 1e-2;

class GpuHeads : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    at::manual_seed(1);
  }
};

struct Problem {
  at::Tensor hidden, lm_head;
  HeadTargets targets;
};

Problem MakeProblem(int64_t num_rows, int64_t hidden_size, int64_t vocabulary_size, int64_t k,
                    at::ScalarType dtype) {
  Problem problem;
  problem.hidden = at::randn({num_rows, hidden_size}).to(dtype);
  problem.lm_head = (at::randn({vocabulary_size, hidden_size}) * 0.3).to(dtype);
  const at::Tensor teacher = at::log_softmax(at::randn({num_rows, vocabulary_size}) * 2, 1);
  const auto [log_q, ids] = teacher.topk(k, 1);
  const at::Tensor y = at::randint(0, vocabulary_size, {num_rows}, at::kLong);
  HeadTargets& targets = problem.targets;
  targets.support_ids_Nk = ids.to(at::kInt);
  targets.teacher_log_probs_Nk = log_q;
  targets.teacher_log_tail_N =
      at::logsumexp(teacher.scatter(1, ids, -std::numeric_limits<double>::infinity()), 1);
  targets.sampled_ids_N = y.to(at::kInt);
  targets.teacher_sampled_log_probs_N = teacher.gather(1, y.unsqueeze(1)).squeeze(1);
  targets.teacher_entropy_N = -(teacher.exp() * teacher).sum(1);
  targets.row_weights_N = at::rand({num_rows}) + 0.1;
  return problem;
}

Problem OnDevice(Problem problem) {
  HeadTargets& t = problem.targets;
  for (at::Tensor* tensor :
       {&problem.hidden, &problem.lm_head, &t.support_ids_Nk, &t.teacher_log_probs_Nk,
        &t.teacher_log_tail_N, &t.sampled_ids_N, &t.teacher_sampled_log_probs_N,
        &t.teacher_entropy_N, &t.row_weights_N}) {
    *tensor = tensor->to(at::kCUDA);
  }
  return problem;
}

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor a = actual.to(at::kCPU, at::kDouble);
  const at::Tensor e = expected.to(at::kCPU, at::kDouble);
  ASSERT_TRUE(at::equal(a.isnan(), e.isnan())) << what;
  const double size = std::max(1.0, e.nan_to_num(0, 0, 0).abs().max().item<double>());
  const double error = (a - e).nan_to_num(0, 0, 0).abs().max().item<double>();
  EXPECT_LE(error, tolerance * size) << what;
}

TEST_F(GpuHeads, StudentMatchesAtenForEveryObjective) {
  for (const ObjectiveInfo& info : AllObjectives()) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (int64_t k : {1, 16, 1024}) {
        const bool full = info.needs & kNeedsFullVocabulary;
        const int64_t vocabulary_size = full ? 1111 : 20011;
        const Problem p =
            OnDevice(MakeProblem(7, 64, vocabulary_size, full ? vocabulary_size : k, dtype));
        HeadOptions options;
        options.objective = FindObjective(info.name).value();
        options.top_k_metrics = !full;
        const std::string what = std::string(info.name) + ", k " + std::to_string(k);

        at::Tensor d_lm_head = at::zeros(p.lm_head.sizes(), p.lm_head.options().dtype(at::kFloat));
        const HeadOutput ours = StudentHead(p.hidden, p.lm_head, p.targets, options, d_lm_head);

        const HeadGemm gemm(p.lm_head);
        at::Tensor logits = at::empty({7, vocabulary_size}, d_lm_head.options());
        gemm.Logits(p.hidden, logits);
        at::Tensor loss = at::empty({7});
        at::Tensor metrics = at::empty({7, kNumHeadMetrics});
        StudentRowsAten(p.targets, options, logits, loss, metrics);
        at::Tensor d_lm_head_aten = at::zeros_like(d_lm_head);
        const at::Tensor d_hidden = gemm.Backward(logits, p.hidden, d_lm_head_aten);

        const double tolerance = dtype == at::kFloat ? kFloatTolerance : kBfloat16Tolerance;
        ExpectClose(ours.loss_N, loss, kFloatTolerance, what + ": loss");
        ExpectClose(ours.metrics_NM, metrics, kFloatTolerance, what + ": metrics");
        ExpectClose(ours.d_hidden_NH, d_hidden, tolerance, what + ": d hidden");
        ExpectClose(d_lm_head, d_lm_head_aten, tolerance, what + ": d lm_head");
      }
    }
  }
}

TEST_F(GpuHeads, StudentMatchesTheCpuAndRepeatsBitForBit) {
  const Problem on_cpu = MakeProblem(33, 48, 5003, 16, at::kFloat);
  const Problem p = OnDevice(on_cpu);
  for (const char* name : {"ta_opd", "sc_ta_opd", "normalized"}) {
    HeadOptions options;
    options.objective = FindObjective(name).value();
    at::Tensor expected_d = at::zeros(on_cpu.lm_head.sizes());
    const HeadOutput expected =
        StudentHead(on_cpu.hidden, on_cpu.lm_head, on_cpu.targets, options, expected_d);
    at::Tensor first_d = at::zeros_like(p.lm_head);
    at::Tensor second_d = at::zeros_like(p.lm_head);
    const HeadOutput first = StudentHead(p.hidden, p.lm_head, p.targets, options, first_d);
    const HeadOutput second = StudentHead(p.hidden, p.lm_head, p.targets, options, second_d);
    EXPECT_TRUE(at::equal(first.loss_N, second.loss_N)) << name;
    EXPECT_TRUE(at::equal(first.d_hidden_NH, second.d_hidden_NH)) << name;
    EXPECT_TRUE(at::equal(first_d, second_d)) << name;
    ExpectClose(first.loss_N, expected.loss_N, kFloatTolerance, name);
    ExpectClose(first.d_hidden_NH, expected.d_hidden_NH, kFloatTolerance, name);
    ExpectClose(first_d, expected_d, kFloatTolerance, name);
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
  Problem p = MakeProblem(3, 8, 40, 3, at::kFloat);
  EXPECT_EQ(message(OnDevice(p)), "accepted");
  p.targets.support_ids_Nk[1][2] = 40;
  EXPECT_NE(message(OnDevice(p)).find("support_ids holds ids outside"), std::string::npos);
  p.targets.support_ids_Nk[1][2] = p.targets.support_ids_Nk[1][0];
  EXPECT_NE(message(OnDevice(p)).find("support_ids holds an id twice"), std::string::npos);
  p = MakeProblem(3, 8, 40, 3, at::kFloat);
  p.targets.sampled_ids_N[0] = -1;
  EXPECT_NE(message(OnDevice(p)).find("sampled_ids holds ids outside"), std::string::npos);
}

// Float16 heads are the composition's alone; the kernel takes float32 and bfloat16 without
// candidates.
TEST_F(GpuHeads, ScoringMatchesAten) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int32_t k : {0, 1, 16, 128, 1024}) {
      for (bool with_candidates : {false, true}) {
        const Problem p = OnDevice(MakeProblem(9, 64, 20011, 3, dtype));
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
        for (at::Tensor* tensor :
             {&aten.ids_Nk, &aten.log_probs_Nk, &aten.log_tail_N, &aten.log_support_mass_N,
              &aten.log_sum_exp_N, &aten.sampled_log_probs_N, &aten.sampled_ranks_N,
              &aten.entropy_N, &aten.candidate_log_probs_NM, &aten.candidate_log_tail_N}) {
          if (tensor->defined()) *tensor = at::empty_like(*tensor);
        }
        const HeadGemm gemm(p.lm_head);
        const at::Tensor logits = at::empty({9, 20011}, p.hidden.options().dtype(at::kFloat));
        gemm.Logits(p.hidden, logits);
        ScoringRowsAten(logits, sampled.to(at::kCPU), candidates, options, 0, &aten);
        const std::string what = "k " + std::to_string(k);
        // The two products may round logits differently, which may swap two that are nearly equal.
        const double same_ids =
            k == 0 ? 1 : ours.ids_Nk.eq(aten.ids_Nk).to(at::kDouble).mean().item<double>();
        EXPECT_GE(same_ids, 0.99) << what;
        ExpectClose(ours.log_probs_Nk, aten.log_probs_Nk, kFloatTolerance, what);
        ExpectClose(ours.log_tail_N, aten.log_tail_N, kFloatTolerance, what);
        ExpectClose(ours.log_sum_exp_N, aten.log_sum_exp_N, kFloatTolerance, what);
        ExpectClose(ours.sampled_log_probs_N, aten.sampled_log_probs_N, kFloatTolerance, what);
        ExpectClose(ours.entropy_N, aten.entropy_N, kFloatTolerance, what);
        if (with_candidates) {
          ExpectClose(ours.candidate_log_probs_NM, aten.candidate_log_probs_NM, kFloatTolerance,
                      what);
          ExpectClose(ours.candidate_log_tail_N, aten.candidate_log_tail_N, kFloatTolerance, what);
        }
        const at::Tensor rank_error = (ours.sampled_ranks_N - aten.sampled_ranks_N).abs();
        EXPECT_LE(rank_error.max().item<int32_t>(), 2) << what;
      }
    }
  }
}

// Read as float32, a float16 tensor would end twice as early.
TEST_F(GpuHeads, Float16HasNoGradient) {
  const Problem p = OnDevice(MakeProblem(3, 8, 40, 3, at::kHalf));
  EXPECT_THROW(StudentHead(p.hidden, p.lm_head, p.targets, {}, {}), c10::Error);
}

}  // namespace
}  // namespace taopd
