// The sampled estimators by enumeration over every y: truncation of rho, and the paper's variances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"

namespace taopd::testing {
namespace {

constexpr int32_t kVocabulary = 9;

struct Moments {
  double mean = 0, variance = 0;
};

// Returns the moments of the loss over y ~ p.
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

// Equation (var_gap): Var(EMA) - Var(SC-TA) = p_tail (1 - p_tail) T (T + 2 KL(p~ || q~)), where T =
// log p_tail/q_tail and tildes mean renormalized on the tail.
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

// A rho, and what the guards make of it.
struct RhoCase {
  double rho, used;
  int num_masked, num_truncated;
};

// The guards act only on rho, for every objective with a score-function part: a rho above max_rho
// is held there, a rho outside of the mask is read as 0, and both are counted. Without guards, the
// result is linear in rho.
TEST(ScoreFunctions, GuardsActOnRhoAndCount) {
  const std::vector<double> logits = RandomLogits(kVocabulary, 2, 1);
  const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, 2));
  const std::vector<double> log_p = LogSoftmax(logits);
  for (const ObjectiveInfo& info : kObjectives) {
    if (!(info.traits & kScoreFunction)) continue;
    EXPECT_TRUE(info.traits & kReadsBehavior) << info.name;
    EXPECT_TRUE(info.traits & kReadsRhoGuards) << info.name;
    const Objective free = *FindObjective(info.name);
    Objective truncated = free;
    truncated.max_rho = 1.5;
    Objective guarded = truncated;
    guarded.mask_rho_below = 0.5;
    guarded.mask_rho_above = 2;
    for (int32_t y = 0; y < kVocabulary; ++y) {
      DenseRow<double> row = MakeRow(logits, log_q, 3, y);
      if (row.Inside(y)) continue;
      row.off_policy = true;
      const auto at_rho = [&](const Objective& objective, double rho) {
        row.log_behavior = rho == 0 ? 1e4 : log_p[y] - std::log(rho);
        return Evaluate(objective, row);
      };
      const DenseResult<double> none = at_rho(free, 0), one = at_rho(free, 1);
      for (const RhoCase& c :
           {RhoCase{0.4, 0, 1, 0}, RhoCase{0.6, 0.6, 0, 0}, RhoCase{1.4, 1.4, 0, 0},
            RhoCase{1.7, 1.5, 0, 1}, RhoCase{2.1, 0, 1, 0}}) {
        const DenseResult<double> result = at_rho(guarded, c.rho), plain = at_rho(free, c.rho);
        EXPECT_EQ(result.num_masked, c.num_masked) << info.name << ", rho " << c.rho;
        EXPECT_EQ(result.num_truncated, c.num_truncated) << info.name << ", rho " << c.rho;
        EXPECT_NEAR(result.loss, none.loss + c.used * (one.loss - none.loss), 1e-11) << info.name;
        for (int32_t v = 0; v < kVocabulary; ++v) {
          EXPECT_NEAR(result.gradient[v],
                      none.gradient[v] + c.used * (one.gradient[v] - none.gradient[v]), 1e-11)
              << info.name << ", rho " << c.rho << ", logit " << v;
        }
        EXPECT_NEAR(plain.loss, none.loss + c.rho * (one.loss - none.loss), 1e-11) << info.name;
        const double cut = std::min(c.rho, truncated.max_rho);  // without masks
        EXPECT_NEAR(at_rho(truncated, c.rho).loss, none.loss + cut * (one.loss - none.loss), 1e-11);
        EXPECT_EQ(plain.num_masked + plain.num_truncated, 0) << info.name;
      }
      EXPECT_GT(std::abs(one.loss - none.loss), 1e-3) << info.name << ": rho has no effect";
    }
  }
}

// Returns the mean of loss and gradient over y ~ behavior, with the ratio to it.
DenseResult<double> MeanOver(const std::vector<double>& log_behavior, const Objective& objective,
                             const std::vector<double>& logits, const std::vector<double>& log_q,
                             int32_t k, bool off_policy) {
  DenseResult<double> mean;
  mean.gradient.resize(kVocabulary);
  for (int32_t y = 0; y < kVocabulary; ++y) {
    const double probability = std::exp(log_behavior[y]);
    if (probability == 0) continue;
    DenseRow<double> row = MakeRow(logits, log_q, k, y);
    row.off_policy = off_policy;
    row.log_behavior = log_behavior[y];
    const DenseResult<double> result = Evaluate(objective, row);
    mean.loss += probability * result.loss;
    for (int32_t v = 0; v < kVocabulary; ++v) {
      mean.gradient[v] += probability * result.gradient[v];
    }
  }
  return mean;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t v = 0; v < a.size(); ++v) largest = std::max(largest, std::abs(a[v] - b[v]));
  return largest;
}

// The estimate of every objective with a score-function part does not depend on the policy that
// drew y: the mean over any behavior policy is the mean over the student itself.
TEST(ScoreFunctions, TheMeanDoesNotDependOnTheBehaviorPolicy) {
  int num_objectives = 0;
  for (const ObjectiveInfo& info : kObjectives) {
    if (!(info.traits & kScoreFunction)) continue;
    ++num_objectives;
    const Objective objective = *FindObjective(info.name);
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      const std::vector<double> logits = RandomLogits(kVocabulary, 2, seed);
      const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, seed + 1000));
      const std::vector<double> behavior = LogSoftmax(RandomLogits(kVocabulary, 1, seed + 2000));
      const int32_t k = 1 + static_cast<int32_t>(seed) % kVocabulary;
      const auto own = MeanOver(LogSoftmax(logits), objective, logits, log_q, k, false);
      const auto other = MeanOver(behavior, objective, logits, log_q, k, true);
      // The comparison is relative because k3's value contains q/p.
      EXPECT_NEAR(other.loss, own.loss, 1e-11 * (1 + std::abs(own.loss))) << info.name;
      EXPECT_LT(LargestDifference(other.gradient, own.gradient), 1e-11)
          << info.name << ", " << seed;
    }
  }
  EXPECT_GE(num_objectives, 7);
}

// Proposition (unbias), by summing over every y ~ p.
TEST(ScoreFunctions, AreUnbiasedForTheFullReverseKl) {
  for (const char* name : {"sc_ta_opd", "ema_pg", "sampled_token", "vopd"}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      const std::vector<double> logits = RandomLogits(kVocabulary, 2, seed);
      const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, seed + 1000));
      const auto full = Evaluate(*FindObjective("full"), MakeRow(logits, log_q, kVocabulary, 0));
      for (int32_t k = 1; k <= kVocabulary; ++k) {
        const auto mean =
            MeanOver(LogSoftmax(logits), *FindObjective(name), logits, log_q, k, false);
        EXPECT_NEAR(mean.loss, full.loss, 1e-11) << name << ", k " << k;
        EXPECT_LT(LargestDifference(mean.gradient, full.gradient), 1e-11) << name << ", k " << k;
      }
    }
  }
}

// The gradients are those that the registry states: k2 has that of the reverse KL, k3 that of the
// forward KL, and entropy_aware that of the reverse KL plus, under an uncertain teacher, the
// forward KL on the support, whatever policy y was drawn from.
TEST(ScoreFunctions, GradientsOffPolicyAreTheStatedOnes) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const std::vector<double> logits = RandomLogits(kVocabulary, 2, seed);
    const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, seed + 1000));
    const std::vector<double> behavior = LogSoftmax(RandomLogits(kVocabulary, 1, seed + 2000));
    const int32_t k = 1 + static_cast<int32_t>(seed) % kVocabulary;
    const auto mean = [&](const char* name) {
      return MeanOver(behavior, *FindObjective(name), logits, log_q, k, true);
    };
    const DenseRow<double> whole = MakeRow(logits, log_q, kVocabulary, 0);
    const auto reverse = Evaluate(*FindObjective("full"), whole);
    const auto forward = Evaluate(*FindObjective("forward_kl_tail"), whole);
    EXPECT_LT(LargestDifference(mean("sampled_token_k2").gradient, reverse.gradient), 1e-11);
    EXPECT_LT(LargestDifference(mean("sampled_token_k3").gradient, forward.gradient), 1e-11);
    auto both = reverse;
    const DenseRow<double> row = MakeRow(logits, log_q, k, 0);
    if (row.teacher_entropy > FindObjective("entropy_aware")->entropy_threshold) {
      const auto added = Evaluate(*FindObjective("forward_kl"), row);
      both.loss += added.loss;
      for (int32_t v = 0; v < kVocabulary; ++v) both.gradient[v] += added.gradient[v];
    }
    const auto aware = mean("entropy_aware");
    EXPECT_NEAR(aware.loss, both.loss, 1e-11) << "seed " << seed;
    EXPECT_LT(LargestDifference(aware.gradient, both.gradient), 1e-11) << "seed " << seed;
  }
}

// PPO's clip: the loss is the larger of -rho A and -clip(rho) A, and has no gradient where the clip
// decides.
TEST(PolicyGradient, TheClipActsOnOneSideOfEachAdvantage) {
  const std::vector<double> logits = RandomLogits(kVocabulary, 2, 1);
  const std::vector<double> log_p = LogSoftmax(logits);
  Objective clipped = *FindObjective("policy_gradient");
  clipped.clip_low = 0.2;
  clipped.clip_high = 0.3;
  DenseRow<double> row = MakeRow(logits, log_p, 3, 5);
  row.off_policy = true;
  for (const double advantage : {1.5, -1.5, 0.0}) {
    for (const double rho : {0.1, 0.79, 0.81, 1.0, 1.29, 1.31, 5.0}) {
      row.advantage = advantage;
      row.log_behavior = log_p[5] - std::log(rho);
      const DenseResult<double> result = Evaluate(clipped, row);
      const double bounded = std::clamp(rho, 0.8, 1.3);
      EXPECT_NEAR(result.loss, std::max(-rho * advantage, -bounded * advantage), 1e-12);
      const bool is_clipped = (advantage > 0 && rho > 1.3) || (advantage < 0 && rho < 0.8);
      EXPECT_EQ(result.num_clipped, is_clipped ? 1 : 0) << advantage << ", " << rho;
      EXPECT_NEAR(result.gradient[5], is_clipped ? 0 : -rho * advantage * (1 - std::exp(log_p[5])),
                  1e-12);
      EXPECT_NEAR(result.gradient[0], is_clipped ? 0 : rho * advantage * std::exp(log_p[0]), 1e-12);
    }
  }
  // A masked rho has neither a loss nor a clip.
  clipped.mask_rho_below = 0.5;
  row.advantage = -1;
  row.log_behavior = log_p[5] - std::log(0.1);
  const DenseResult<double> masked = Evaluate(clipped, row);
  EXPECT_EQ(masked.loss, 0);
  EXPECT_EQ(masked.num_masked, 1);
  EXPECT_EQ(masked.num_clipped, 0);
}

// Where the policy that wrote y is unknown, the objectives that allow it leave out y's part.
TEST(GivenResponses, ObjectivesThatAllowThemDoNotReadTheToken) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  int num_allowed = 0;
  for (const ObjectiveInfo& info : kObjectives) {
    const bool is_read = info.traits & kReadsBehavior;
    if (is_read && !(info.traits & kAllowsGivenResponses)) continue;
    num_allowed += is_read ? 1 : 0;
    const int32_t k = info.traits & kNeedsFullVocabulary ? kVocabulary : 3;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const std::vector<double> logits = RandomLogits(kVocabulary, 2, seed);
      const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, seed + 1000));
      const char* same_as = info.name == "sc_ta_opd" ? "ta_opd" : info.name.data();
      for (int32_t y = 0; y < kVocabulary; ++y) {
        DenseRow<double> row = MakeRow(logits, log_q, k, y);
        const DenseResult<double> expected = Evaluate(*FindObjective(same_as), row);
        row.off_policy = true;
        row.log_behavior = unknown;
        const DenseResult<double> given = Evaluate(*FindObjective(info.name), row);
        const bool is_nothing = info.name == "policy_gradient";
        EXPECT_EQ(given.loss, is_nothing ? 0 : expected.loss) << info.name;
        for (int32_t v = 0; v < kVocabulary; ++v)
          EXPECT_EQ(given.gradient[v], is_nothing ? 0 : expected.gradient[v]) << info.name;
      }
    }
  }
  EXPECT_EQ(num_allowed, 2) << "sc_ta_opd and policy_gradient";
}

// Shows why configurations with truncated sampling are refused: if the behavior is the truncated
// distribution's own log-prob, an objective with rho estimates something else. The other objectives
// do not depend on y at all, except for cross_entropy, whose target is y.
TEST(ScoreFunctions, TruncatedSamplingBiasesThemAndNoOther) {
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.name == "cross_entropy") continue;
    const Objective objective = *FindObjective(info.name);
    const int32_t k = info.traits & kNeedsFullVocabulary ? kVocabulary : 3;
    double largest = 0;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const std::vector<double> logits = RandomLogits(kVocabulary, 1, seed);
      const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 1, seed + 1000));
      const std::vector<double> log_p = LogSoftmax(logits);
      std::vector<double> kept_logits(kVocabulary, NegativeInfinity<double>());
      for (const int32_t v : Largest(logits, 4)) kept_logits[v] = logits[v];
      const auto own = MeanOver(log_p, objective, logits, log_q, k, false);
      const auto kept = MeanOver(LogSoftmax(kept_logits), objective, logits, log_q, k, true);
      largest = std::max(largest, LargestDifference(own.gradient, kept.gradient));
    }
    if (info.traits & kReadsBehavior) {
      EXPECT_GT(largest, 0.01) << info.name;
    } else {
      EXPECT_LT(largest, 1e-12) << info.name;
    }
  }
}

}  // namespace
}  // namespace taopd::testing
