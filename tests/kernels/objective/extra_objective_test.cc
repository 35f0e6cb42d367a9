// Shows that a new objective is one function and one row: this program is compiled with one more
// row (squared_error_objective.h), finds it by name, checks its gradient and trains with it.
#include <gtest/gtest.h>

#include <cmath>

#include "taopd/objective/check_objective.h"
#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"

namespace taopd::testing {
namespace {

TEST(ExtraObjective, StandsInTheRegistry) {
  const std::optional<Objective> objective = FindObjective("squared_error");
  ASSERT_TRUE(objective.has_value());
  EXPECT_EQ(kObjectives.back().name, "squared_error");
  EXPECT_EQ(NameOf(*objective), "squared_error");
  EXPECT_EQ(TraitsOf(*objective), kNeedsSupport);
}

TEST(ExtraObjective, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-5;
  const std::vector<double> log_q = LogSoftmax(RandomLogits(7, 2, 1));
  for (int32_t k = 1; k <= 7; ++k) {
    const DenseRow<double> row = MakeRow(RandomLogits(7, 2, 2), log_q, k, 0);
    const auto result = Evaluate(*FindObjective("squared_error"), row);
    for (int32_t v = 0; v < 7; ++v) {
      DenseRow<double> high = row, low = row;
      high.logits[v] += kStep;
      low.logits[v] -= kStep;
      const double difference = (Evaluate(*FindObjective("squared_error"), high).loss -
                                 Evaluate(*FindObjective("squared_error"), low).loss) /
                                (2 * kStep);
      EXPECT_NEAR(result.gradient[v], difference, 1e-9) << "k " << k << ", logit " << v;
    }
  }
}

// Gradient descent on the new objective, alone and in a combination, brings the student to the
// teacher in terms of the full reverse KL.
TEST(ExtraObjective, Trains) {
  const std::vector<double> log_q = LogSoftmax(RandomLogits(7, 1.5, 3));
  const Objective full = *FindObjective("full");
  ObjectiveTerms combination(*FindObjective("squared_error"));
  combination.num_terms = 2;
  combination.term[1] = {*FindObjective("ta_opd"), 0.5};
  for (const ObjectiveTerms& terms :
       {ObjectiveTerms(*FindObjective("squared_error")), combination}) {
    DenseRow<double> row = MakeRow(RandomLogits(7, 1.5, 4), log_q, 7, 0);
    const double before = Evaluate(full, row).loss;
    for (int step = 0; step < 5000; ++step) {
      const auto result = Evaluate(terms, row);
      for (int32_t v = 0; v < 7; ++v) row.logits[v] -= result.gradient[v];
    }
    EXPECT_LT(Evaluate(full, row).loss, 0.01 * before) << NameOf(terms);
  }
}

}  // namespace
}  // namespace taopd::testing
