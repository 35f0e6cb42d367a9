// The sampled estimators by enumeration over every y: truncation of rho, and the paper's variances.
#include <gtest/gtest.h>

#include <cmath>

#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"

namespace taopd {
namespace {

using testing::DenseResult;
using testing::DenseRow;
using testing::Evaluate;
using testing::LogSoftmax;
using testing::MakeRow;
using testing::RandomLogits;

constexpr int32_t kVocabulary = 9;

struct Moments {
  double mean = 0, variance = 0;
};

// Of the loss over y ~ p.
Moments OverSampled(const Objective& objective, const std::vector<double>& logits,
                    const std::vector<double>& log_q, int32_t k) {
  const std::vector<double> log_p = LogSoftmax(logits);
  Moments moments;
  double square = 0;
  for (int32_t y = 0; y < kVocabulary; ++y) {
    const double loss = Evaluate(objective, MakeRow(logits, log_q, k, y)).loss;
    moments.mean += std::exp(log_p[y]) * loss;
    square += std::exp(log_p[y]) * loss * loss;
  }
  moments.variance = square - moments.mean * moments.mean;
  return moments;
}

// Equation (var_gap): Var(EMA) - Var(SC-TA) = p_tail (1 - p_tail) T (T + 2 KL(p~ || q~)), T = log
// p_tail/q_tail and tildes: renormalised on the tail.
TEST(Estimators, VarianceOfEmaPgExceedsScTaOpdsAsThePaperDerives) {
  int num_student_tail_larger = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const std::vector<double> logits = RandomLogits(kVocabulary, 1.5, seed);
    const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 1.5, seed + 500));
    const std::vector<double> log_p = LogSoftmax(logits);
    for (int32_t k = 1; k < kVocabulary; ++k) {
      const DenseRow<double> row = MakeRow(logits, log_q, k, 0);
      double p_tail = 0, q_tail = 0;
      for (int32_t v = 0; v < kVocabulary; ++v) {
        if (row.Inside(v)) continue;
        p_tail += std::exp(log_p[v]);
        q_tail += std::exp(log_q[v]);
      }
      const double ratio = std::log(p_tail / q_tail);
      double kl = 0;
      for (int32_t v = 0; v < kVocabulary; ++v) {
        if (!row.Inside(v)) kl += std::exp(log_p[v]) / p_tail * (log_p[v] - log_q[v] - ratio);
      }
      const Moments ema = OverSampled(*FindObjective("ema_pg"), logits, log_q, k);
      const Moments sc = OverSampled(*FindObjective("sc_ta_opd"), logits, log_q, k);
      EXPECT_NEAR(ema.mean, sc.mean, 1e-11);
      EXPECT_NEAR(ema.variance - sc.variance, p_tail * (1 - p_tail) * ratio * (ratio + 2 * kl),
                  1e-11)
          << "seed " << seed << ", k " << k;
      if (p_tail <= q_tail) continue;
      ++num_student_tail_larger;
      EXPECT_GT(ema.variance, sc.variance);
    }
  }
  EXPECT_GT(num_student_tail_larger, 100);
}

// rho above max_rho is held there and counted; the estimate is then the one with that rho.
TEST(ScTaOpd, TruncatesRhoOnRequestAndCounts) {
  const std::vector<double> logits = RandomLogits(kVocabulary, 2, 1);
  const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, 2));
  const std::vector<double> log_p = LogSoftmax(logits);
  Objective free = *FindObjective("sc_ta_opd");
  Objective truncated = free;
  truncated.max_rho = 2;
  int num_outside = 0;
  for (int32_t y = 0; y < kVocabulary; ++y) {
    DenseRow<double> row = MakeRow(logits, log_q, 3, y);
    if (row.Inside(y)) continue;
    ++num_outside;
    const double on_policy = Evaluate(free, row).loss;
    const double ta = Evaluate(*FindObjective("ta_opd"), row).loss;
    row.off_policy = true;
    for (double log_rho : {-1.0, std::log(1.99), std::log(5.0)}) {
      row.log_behavior = log_p[y] - log_rho;
      const double rho = std::exp(log_rho);
      const DenseResult<double> plain = Evaluate(free, row);
      EXPECT_NEAR(plain.loss, ta + rho * (on_policy - ta), 1e-12);
      EXPECT_EQ(plain.num_truncated, 0);
      const DenseResult<double> held = Evaluate(truncated, row);
      EXPECT_NEAR(held.loss, ta + std::min(rho, 2.0) * (on_policy - ta), 1e-12);
      EXPECT_EQ(held.num_truncated, rho > 2 ? 1 : 0);
    }
  }
  EXPECT_EQ(num_outside, 6);
}

}  // namespace
}  // namespace taopd
