// Linear combinations, their checks, and teachers that send no tail.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "taopd/objective/check_objective.h"
#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"

namespace taopd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

ObjectiveTerms Terms(const std::vector<std::pair<const char*, double>>& list) {
  ObjectiveTerms terms;
  terms.num_terms = static_cast<int32_t>(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    terms.term[i] = {*FindObjective(list[i].first), list[i].second};
  }
  return terms;
}

TEST(ObjectiveTerms, SumsLossGradientAndShares) {
  const DenseRow<double> row =
      MakeRow(RandomLogits(9, 2, 1), LogSoftmax(RandomLogits(9, 2, 2)), 4, 7);
  const std::vector<std::pair<const char*, double>> list = {
      {"sc_ta_opd", 0.7}, {"normalized", -0.2}, {"cross_entropy", 3}, {"sampled_token_k2", 1}};
  const DenseResult<double> sum = Evaluate(Terms(list), row);
  double loss = 0;
  std::vector<double> gradient(9);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const DenseResult<double> alone = Evaluate(Terms({{list[i].first, 1}}), row);
    EXPECT_NEAR(sum.term_loss[i], list[i].second * alone.loss, 1e-13);
    loss += list[i].second * alone.loss;
    for (int v = 0; v < 9; ++v) gradient[v] += list[i].second * alone.gradient[v];
  }
  EXPECT_NEAR(sum.loss, loss, 1e-13);
  for (int v = 0; v < 9; ++v) EXPECT_NEAR(sum.gradient[v], gradient[v], 1e-13);
}

TEST(ObjectiveTerms, OneTermIsTheObjectiveItself) {
  const DenseRow<double> row =
      MakeRow(RandomLogits(9, 2, 3), LogSoftmax(RandomLogits(9, 2, 4)), 4, 7);
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.traits & kNeedsFullVocabulary) continue;
    const Objective objective = *FindObjective(info.name);
    const DenseResult<double> one = Evaluate(objective, row);
    const DenseResult<double> doubled = Evaluate(Terms({{info.name.data(), 2}}), row);
    EXPECT_EQ(one.term_loss[0], one.loss) << info.name;
    EXPECT_EQ(one.term_loss[1], 0) << info.name;
    EXPECT_EQ(doubled.loss, 2 * one.loss) << info.name;
    for (int v = 0; v < 9; ++v) EXPECT_EQ(doubled.gradient[v], 2 * one.gradient[v]) << info.name;
    EXPECT_EQ(TraitsOf(objective), info.traits);
  }
  EXPECT_EQ(TraitsOf(Terms({{"sampled_token", 1}, {"jsd", 1}})),
            InfoOf(*FindObjective("sampled_token")).traits | InfoOf(*FindObjective("jsd")).traits);
}

TEST(ObjectiveTerms, ProblemsNameFieldValueAndLimit) {
  ObjectiveTerms terms = Terms({{"jsd", 1}, {"entropy_aware", 0.5}});
  EXPECT_EQ(ProblemOf(terms), "");
  EXPECT_EQ(NameOf(terms), "jsd + 0.5 entropy_aware");
  terms.term[0].objective.beta = 1.5;
  EXPECT_EQ(ProblemOf(terms), "beta is 1.5, must be above 0 and below 1 for objective jsd");
  terms.term[0].objective.beta = 0.5;
  terms.term[1].objective.beta = 7;  // not read by this objective
  EXPECT_EQ(ProblemOf(terms), "");
  terms.term[1].objective.entropy_threshold = -1;
  EXPECT_EQ(ProblemOf(terms),
            "entropy_threshold is -1, must be at least 0 for objective entropy_aware");
  terms.term[1].objective.entropy_threshold = 1;
  terms.term[1].weight = std::nan("");
  EXPECT_EQ(ProblemOf(terms),
            "weight is nan, must be finite and not 0, for objective entropy_aware");
  terms.num_terms = 0;
  EXPECT_EQ(ProblemOf(terms), "num_terms is 0, must be 1 to 4");
}

// This property decides whether the products over the vocabulary are left out.
TEST(NoDenseGradient, IsSaidOfExactlyTheObjectivesWhoseAIsZero) {
  const double p[] = {0.5, 0.2, 0.1};
  const double log_p[] = {std::log(p[0]), std::log(p[1]), std::log(p[2])};
  const double log_q[] = {std::log(0.4), std::log(0.3), std::log(0.05)};
  ObjectiveRow<double> row = {.k = 3,
                              .log_p = log_p,
                              .p = p,
                              .log_q = log_q,
                              .log_p_tail = std::log(0.2),
                              .log_q_tail = std::log(0.25)};
  row.log_p_sampled = row.log_behavior_sampled = std::log(0.02);
  row.log_q_sampled = std::log(0.01);
  row.teacher_entropy = 2;
  row.advantage = 1;
  for (const ObjectiveInfo& info : kObjectives) {
    double gradient[3];
    ObjectiveResult<double> result = {.support_gradient = gradient};
    const ObjectiveTerms terms = *FindObjective(info.name);
    EvaluateObjectives(terms, row, static_cast<double*>(nullptr), &result);
    // Over the whole vocabulary, the k entries are the dense gradient.
    const bool dense = result.a != 0 || (info.traits & kNeedsFullVocabulary);
    EXPECT_EQ(HasDenseGradient(terms), dense) << info.name;
  }
}

TEST(ObjectiveParameters, DefaultsAreInRangeAndTheEndsAreExact) {
  const auto accepts = [](std::string_view name, double value) {
    for (const ObjectiveParameter& parameter : kObjectiveParameters) {
      if (parameter.name == name) return parameter.IsInRange(value);
    }
    ADD_FAILURE() << "there is no parameter " << name;
    return false;
  };
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    EXPECT_TRUE(parameter.IsInRange(ObjectiveParameters().*parameter.value)) << parameter.name;
    EXPECT_FALSE(parameter.IsInRange(std::nan(""))) << parameter.name;
    EXPECT_FALSE(parameter.IsInRange(-1e-9)) << parameter.name;
  }
  EXPECT_FALSE(accepts("beta", 0));
  EXPECT_TRUE(accepts("beta", 1e-9));
  EXPECT_FALSE(accepts("beta", 1));
  for (const char* name : {"entropy_threshold", "max_rho"}) {
    EXPECT_TRUE(accepts(name, 0)) << name;
    EXPECT_TRUE(accepts(name, kInf)) << name;
  }
}

TEST(EntropyAware, AddsForwardKlAboveTheThresholdOnly) {
  DenseRow<double> row = MakeRow(RandomLogits(9, 2, 5), LogSoftmax(RandomLogits(9, 2, 6)), 4, 7);
  Objective objective = *FindObjective("entropy_aware");
  objective.entropy_threshold = 1.25;
  const double sampled = Evaluate(*FindObjective("sampled_token"), row).loss;
  const double forward = Evaluate(*FindObjective("forward_kl"), row).loss;
  ASSERT_GT(forward, 0.01);
  row.teacher_entropy = 1.25;
  EXPECT_EQ(Evaluate(objective, row).loss, sampled);
  row.teacher_entropy = 1.26;
  EXPECT_NEAR(Evaluate(objective, row).loss, sampled + forward, 1e-14);
  row.teacher_entropy = std::nan("");
  EXPECT_TRUE(std::isnan(Evaluate(objective, row).loss)) << "an entropy that is absent must show";
}

// TA-OPD of rows whose tails are from 1e-30 to 1 - 1e-7 on either side, against the binary KL of
// the masses: the support has one id, so both distributions are (1 - tail, tail).
TEST(TaOpd, TailsOfAnySize) {
  for (double p_tail : {1e-30, 1e-7, 0.5, 1 - 1e-7}) {
    for (double q_tail : {1e-30, 1e-7, 0.5, 1 - 1e-7}) {
      const DenseRow<double> row = {
          .logits = {std::log1p(-p_tail), std::log(p_tail / 2), std::log(p_tail / 2)},
          .support = {0},
          .teacher = {std::log1p(-q_tail)},
          .teacher_tail = std::log(q_tail),
          .teacher_sampled = std::log1p(-q_tail)};
      const double expected = (1 - p_tail) * (std::log1p(-p_tail) - std::log1p(-q_tail)) +
                              p_tail * std::log(p_tail / q_tail);
      const DenseResult<double> wide = Evaluate(*FindObjective("ta_opd"), row);
      EXPECT_NEAR(wide.loss, expected, 1e-12 * (1 + std::abs(expected))) << p_tail << " " << q_tail;
      DenseRow<float> narrow_row;
      narrow_row.logits.assign(row.logits.begin(), row.logits.end());
      narrow_row.support = row.support;
      narrow_row.teacher.assign(row.teacher.begin(), row.teacher.end());
      narrow_row.teacher_tail = static_cast<float>(row.teacher_tail);
      narrow_row.teacher_sampled = static_cast<float>(row.teacher_sampled);
      const DenseResult<float> narrow = Evaluate(*FindObjective("ta_opd"), narrow_row);
      for (int v = 0; v < 3; ++v) {
        EXPECT_NEAR(narrow.gradient[v], wide.gradient[v], 1e-5 * (1 + std::abs(expected)))
            << p_tail << " " << q_tail;
      }
    }
  }
}

TEST(FillTeacherTail, LeavesMakesOrClampsIt) {
  const double log_q[] = {std::log(0.5), std::log(0.25)};
  ObjectiveRow<double> row = {.k = 2, .log_q = log_q, .log_q_tail = -3};
  EXPECT_EQ(FillTeacherTail(&row, false), kTailGiven);
  EXPECT_EQ(row.log_q_tail, -3);
  row.log_q_tail = std::nan("");
  EXPECT_EQ(FillTeacherTail(&row, false), kTailDerived);
  EXPECT_NEAR(row.log_q_tail, std::log(0.25), 1e-15);
  row.log_q_tail = std::nan("");
  EXPECT_EQ(FillTeacherTail(&row, true), kTailDerived);
  EXPECT_EQ(row.log_q_tail, -kInf);
  const double whole[] = {std::log(0.75), std::log(0.25 + 1e-9)};
  row.log_q = whole;
  row.log_q_tail = std::nan("");
  EXPECT_EQ(FillTeacherTail(&row, false), kTailClamped);
  EXPECT_NEAR(row.log_q_tail, std::log(-std::expm1(-kTailEpsilon)), 1e-12);
  const double broken[] = {std::nan(""), -1};
  row.log_q = broken;
  row.log_q_tail = std::nan("");
  FillTeacherTail(&row, false);
  EXPECT_TRUE(std::isnan(row.log_q_tail));
}

}  // namespace
}  // namespace taopd::testing
