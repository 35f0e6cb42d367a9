// The fused head's reports besides the loss, combinations of objectives, and supports of different
// sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/head/student_head.h"
#include "tests/kernels/torch/head_problem.h"

namespace taopd::testing {
namespace {

TEST(StudentHeadRows, MetricsAreTheRowsOwnNumbers) {
  Problem problem = MakeProblem(8, 6, 30, 5, 8);
  problem.targets.sampled_ids_N[0] = problem.targets.support_ids_Nk[0][3];
  problem.targets.teacher_log_probs_Nk[1][4] = -kInf;
  const HeadOptions options = OptionsFor("ta_opd");
  const HeadOutput output = RunHead(problem, options).output;
  const Expected expected = Oracle(problem, options);
  const at::Tensor ids = problem.targets.support_ids_Nk.to(at::kLong);
  const at::Tensor y = problem.targets.sampled_ids_N.to(at::kLong).unsqueeze(1);
  const auto column = [&](HeadMetric metric) { return output.metrics_NM.select(1, metric); };
  const at::Tensor p = expected.log_p.exp();
  const at::Tensor log_py = expected.log_p.gather(1, y).squeeze(1);
  ExpectClose(column(kStudentTail), 1 - p.gather(1, ids).sum(1), 1e-6, "student tail");
  ExpectClose(column(kTeacherTail), problem.targets.teacher_log_tail_N.to(at::kDouble).exp(), 1e-6,
              "teacher tail");
  ExpectClose(column(kStudentEntropy), -(p * expected.log_p).sum(1), 1e-6, "entropy");
  ExpectClose(column(kSampledLogProb), log_py, 1e-6, "log p(y)");
  ExpectClose(column(kSampledLogRatio),
              log_py - problem.targets.teacher_sampled_log_probs_N.to(at::kDouble), 2e-6,
              "log ratio");
  ExpectClose(column(kStudentMass), p.gather(1, ids).sum(1), 1e-6, "student mass");
  ExpectClose(column(kTeacherMass),
              problem.targets.teacher_log_probs_Nk.to(at::kDouble).exp().sum(1), 1e-6,
              "teacher mass");
  ExpectClose(column(kTermLoss), expected.loss, 1e-5, "the only term's loss");
  EXPECT_TRUE(at::isnan(column(kTopKOverlap)).all().item<bool>());
  ExpectClose(column(kSampledOutside), ids.ne(y).all(1).to(at::kDouble), 0, "outside");
  EXPECT_EQ(column(kSampledOutside)[0].item<float>(), 0);
  EXPECT_EQ(column(kNumLimited)[0].item<float>(), 0);
  EXPECT_EQ(column(kNumLimited)[1].item<float>(), 1);
}

// Rows of different support sizes in one tensor behave as if each row were alone with its own k.
TEST(StudentHeadRows, PaddingMakesTheSupportSmaller) {
  for (const char* name : {"ta_opd", "sc_ta_opd", "forward_kl", "cross_entropy", "sampled_token"}) {
    Problem problem = MakeProblem(4, 6, 30, 5, 18);
    HeadOptions options = OptionsFor(name);
    options.top_k_metrics = true;
    const int64_t sizes[] = {5, 3, 1, TraitsOf(options.objective) & kNeedsSupport ? 4 : 0};
    for (int64_t n = 0; n < 4; ++n) {
      problem.targets.support_ids_Nk[n].narrow(0, sizes[n], 5 - sizes[n]).fill_(-1);
    }
    const HeadOutput padded =
        StudentHead(problem.hidden, problem.lm_head, problem.targets, options, {});
    for (int64_t n = 0; n < 4; ++n) {
      Problem alone = Narrowed(problem, n, 1);
      HeadTargets& t = alone.targets;
      t.support_ids_Nk = t.support_ids_Nk.narrow(1, 0, sizes[n]);
      t.teacher_log_probs_Nk = t.teacher_log_probs_Nk.narrow(1, 0, sizes[n]);
      const HeadOutput expected = StudentHead(alone.hidden, alone.lm_head, t, options, {});
      const std::string what = std::string(name) + ", row " + std::to_string(n);
      const auto same = [&](const at::Tensor& actual, const at::Tensor& want) {
        ExpectClose(at::nan_to_num(actual), at::nan_to_num(want).to(at::kDouble), kFloatTolerance,
                    what);
      };
      same(padded.loss_N[n], expected.loss_N[0]);
      ExpectGradientClose(padded.d_hidden_NH[n], expected.d_hidden_NH[0].to(at::kDouble),
                          kFloatTolerance, what);
      same(padded.metrics_NM[n], expected.metrics_NM[0]);
    }
  }
}

// Compares with the student's top-k by sorting the whole row, including ties between the support
// and other ids.
TEST(StudentHeadRows, TopKOverlapIsThatOfTheSortedRow) {
  for (int64_t k : {1, 2, 7, 40}) {
    for (int64_t vocab_size : {40, 300, 1031}) {
      Problem problem = MakeProblem(5, 6, vocab_size, k, 19 + k);
      problem.lm_head.index_put_({at::indexing::Slice(3, vocab_size, 5)}, problem.lm_head[3]);
      HeadOptions options = OptionsFor("ta_opd");
      options.top_k_metrics = true;
      const HeadOutput output = RunHead(problem, options).output;
      const HeadGemm gemm(problem.lm_head);
      at::Tensor logits = at::empty({5, vocab_size});
      gemm.Logits(problem.hidden, logits);
      const at::Tensor order = std::get<1>(logits.sort(/*stable=*/true, 1, /*descending=*/true));
      const at::Tensor ids = problem.targets.support_ids_Nk.to(at::kLong);
      const at::Tensor inside =
          ids.unsqueeze(2).eq(order.narrow(1, 0, k).unsqueeze(1)).any(2).to(at::kDouble);
      const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), 1).gather(1, ids);
      const at::Tensor log_q = problem.targets.teacher_log_probs_Nk.to(at::kDouble);
      const at::Tensor advantage =
          (inside * log_q.exp() * (log_p - log_q)).sum(1) / inside.sum(1).clamp_min(1);
      const std::string what = "k " + std::to_string(k) + ", V " + std::to_string(vocab_size);
      ExpectClose(output.metrics_NM.select(1, kTopKOverlap), inside.sum(1), 0, what);
      ExpectClose(output.metrics_NM.select(1, kTopKOverlapAdvantage), advantage, 1e-6, what);
    }
  }
}

TEST(StudentHeadRows, CombinationIsTheSumOfItsTerms) {
  const Problem problem = MakeProblem(6, 8, 50, 7, 20);
  const std::pair<const char*, double> terms[] = {
      {"ta_opd", 0.75}, {"cross_entropy", -0.5}, {"sc_ta_opd", 2}, {"jsd", 1}};
  HeadOptions combined = OptionsFor("ta_opd");
  combined.objective.num_terms = 4;
  at::Tensor loss = at::zeros({6}, at::kDouble);
  at::Tensor d_hidden = at::zeros({6, 8}, at::kDouble);
  at::Tensor shares = at::zeros({6, 4}, at::kDouble);
  for (int i = 0; i < 4; ++i) {
    const HeadOptions alone = OptionsFor(terms[i].first);
    combined.objective.term[i] = {alone.objective.term[0].objective, terms[i].second};
    const HeadOutput output = RunHead(problem, alone).output;
    loss += terms[i].second * output.loss_N;
    d_hidden += terms[i].second * output.d_hidden_NH;
    shares.select(1, i).copy_(terms[i].second * output.loss_N);
  }
  const HeadOutput output = RunHead(problem, combined).output;
  ExpectClose(output.loss_N, loss, kFloatTolerance, "loss");
  ExpectGradientClose(output.d_hidden_NH, d_hidden, kFloatTolerance, "d hidden");
  ExpectClose(output.metrics_NM.narrow(1, kTermLoss, 4), shares, kFloatTolerance, "shares");
}

// A teacher without a tail behaves as if it had sent log1mexp of its mass.
TEST(StudentHeadRows, MakesTheTeachersTailWhereItSentNone) {
  const Problem problem = MakeProblem(4, 6, 30, 5, 21);
  const HeadOptions options = OptionsFor("ta_opd");
  const HeadOutput given = RunHead(problem, options).output;
  Problem absent = problem;
  absent.targets.teacher_log_tail_N.reset();
  absent.targets.teacher_log_probs_Nk = problem.targets.teacher_log_probs_Nk.clone();
  // Row 2 has the whole mass on the support, which the clamp keeps below 1.
  absent.targets.teacher_log_probs_Nk[2] =
      at::log_softmax(problem.targets.teacher_log_probs_Nk[2], 0);
  const HeadOutput made = RunHead(absent, options).output;
  for (int64_t n : {0, 1, 3}) {
    // The log-probs are float32: the tail computed as one minus their mass has their rounding.
    EXPECT_NEAR(made.loss_N[n].item<float>(), given.loss_N[n].item<float>(), 1e-5);
    EXPECT_EQ(made.metrics_NM[n][kTailWasDerived].item<float>(), 1);
    EXPECT_EQ(made.metrics_NM[n][kTailWasClamped].item<float>(), 0);
    EXPECT_EQ(given.metrics_NM[n][kTailWasDerived].item<float>(), 0);
  }
  EXPECT_EQ(made.metrics_NM[2][kTailWasClamped].item<float>(), 1);
  EXPECT_NEAR(made.metrics_NM[2][kTeacherTail].item<float>(), kTailEpsilon, 1e-9);

  Problem nan = problem;
  nan.targets.teacher_log_tail_N = problem.targets.teacher_log_tail_N.clone();
  nan.targets.teacher_log_tail_N[1] = std::nan("");
  const HeadOutput mixed = RunHead(nan, options).output;
  EXPECT_EQ(mixed.metrics_NM[1][kTailWasDerived].item<float>(), 1);
  EXPECT_EQ(mixed.metrics_NM[0][kTailWasDerived].item<float>(), 0);
  EXPECT_NEAR(mixed.loss_N[1].item<float>(), given.loss_N[1].item<float>(), 1e-5);
}

}  // namespace
}  // namespace taopd::testing
