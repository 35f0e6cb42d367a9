// The metrics that are reported besides the loss.
#include "taopd/objective/row_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"

namespace taopd::testing {
namespace {

double TailOf(const DenseRow<double>& row) {
  const std::vector<double> log_p = LogSoftmax(row.logits);
  double tail = 0;
  for (std::size_t v = 0; v < log_p.size(); ++v) {
    if (!row.Inside(static_cast<int32_t>(v))) tail += std::exp(log_p[v]);
  }
  return tail;
}

// Proposition (tail_prob_increase): a small step of the normalized objective changes the tail by
// eta p_tail (1 - p_tail) times the covariance.
TEST(TailGrowth, IsTheTailsChangeUnderAStepOfTheNormalizedObjective) {
  constexpr double kEta = 1e-5;  // second order: 1e-5 of the change
  int num_grow = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    DenseRow<double> row =
        MakeRow(RandomLogits(9, 2, seed), LogSoftmax(RandomLogits(9, 2, seed + 99)), 5, 0);
    const double before = TailOf(row);
    const std::vector<double> log_p_all = LogSoftmax(row.logits);
    std::vector<double> log_p, p;
    for (int32_t id : row.support) {
      log_p.push_back(log_p_all[id]);
      p.push_back(std::exp(log_p.back()));
    }
    const ObjectiveRow<double> inputs = {
        .k = 5, .log_p = log_p.data(), .p = p.data(), .log_q = row.teacher.data()};
    const double covariance = TailGrowthCovariance(inputs);
    const auto result = Evaluate(*FindObjective("normalized"), row);
    for (int v = 0; v < 9; ++v) row.logits[v] -= kEta * result.gradient[v];
    const double expected = before * (1 - before) * covariance;
    EXPECT_NEAR((TailOf(row) - before) / kEta, expected, 1e-4 * (std::abs(expected) + 1e-3))
        << "seed " << seed;
    num_grow += covariance > 0;
  }
  EXPECT_GT(num_grow, 10);
  EXPECT_LT(num_grow, 50) << "both signs occur";
}

// The definition of the paper's code on numbers computed by hand: q (log p - log q), averaged over
// the tokens in both top-k.
TEST(OverlapAdvantage, IsTheMeanOverTheOverlap) {
  const double log_p[] = {std::log(0.5), std::log(0.2), -INFINITY};
  const double log_q[] = {std::log(0.25), std::log(0.4), -INFINITY};
  const double q[] = {0.25, 0.4, 0};
  const uint8_t both[] = {1, 1, 0};
  EXPECT_NEAR(OverlapAdvantage(log_p, log_q, q, 3, both),
              (0.25 * std::log(2.0) - 0.4 * std::log(2.0)) / 2, 1e-15);
  const uint8_t all[] = {1, 1, 1};
  EXPECT_NEAR(OverlapAdvantage(log_p, log_q, q, 3, all),
              (0.25 * std::log(2.0) - 0.4 * std::log(2.0)) / 3, 1e-15);
  const uint8_t none[] = {0, 0, 0};
  EXPECT_EQ(OverlapAdvantage(log_p, log_q, q, 3, none), 0);
}

}  // namespace
}  // namespace taopd::testing
