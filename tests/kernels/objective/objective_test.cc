// Properties of every objective in the registry: its derivative, its limits, and the paper's
// propositions.
#include "taopd/objective/objective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "tests/kernels/objective/dense_row.h"

namespace taopd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Objective Find(const std::string& name) {
  const std::optional<Objective> objective = FindObjective(name);
  EXPECT_TRUE(objective.has_value()) << name;
  return *objective;
}

double FullReverseKl(const std::vector<double>& log_p, const std::vector<double>& log_q) {
  double sum = 0;
  for (std::size_t v = 0; v < log_p.size(); ++v) sum += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
  return sum;
}

std::vector<double> FullReverseKlGradient(const std::vector<double>& log_p,
                                          const std::vector<double>& log_q) {
  const double kl = FullReverseKl(log_p, log_q);
  std::vector<double> gradient;
  for (std::size_t v = 0; v < log_p.size(); ++v) {
    gradient.push_back(std::exp(log_p[v]) * (log_p[v] - log_q[v] - kl));
  }
  return gradient;
}

// For objectives whose gradient is that of a surrogate: returns the surrogate as a function of the
// logits, with everything under a stop-gradient frozen at `at`.
double Surrogate(const std::string& name, const DenseRow<double>& at,
                 const std::vector<double>& logits) {
  DenseRow<double> moved = at;
  moved.logits = logits;
  const double log_py = LogSoftmax(logits)[at.sampled];
  const double frozen_log_py = LogSoftmax(at.logits)[at.sampled];
  const double frozen_loss = Evaluate(Find(name), at).loss;
  const double rho = at.off_policy ? std::exp(frozen_log_py - at.log_behavior) : 1;
  if (name == "sc_ta_opd") {
    const double frozen_correction = frozen_loss - Evaluate(Find("ta_opd"), at).loss;
    return Evaluate(Find("ta_opd"), moved).loss +
           frozen_correction * std::exp(log_py - frozen_log_py);
  }
  if (name == "ema_pg") {
    const std::vector<double> frozen = LogSoftmax(at.logits);
    const std::vector<double> log_p = LogSoftmax(logits);
    double sum = 0;
    for (std::size_t j = 0; j < at.support.size(); ++j) {
      sum += std::exp(log_p[at.support[j]]) * (frozen[at.support[j]] - at.teacher[j]);
    }
    if (at.Inside(at.sampled)) return sum;
    return sum + rho * std::exp(log_py - frozen_log_py) * (frozen_log_py - at.teacher_sampled);
  }
  if (name == "sampled_token") return frozen_loss * log_py;
  // With rho frozen, these two are differentiated directly.
  const double ratio = log_py - at.teacher_sampled;
  if (name == "sampled_token_k2") return rho * ratio * ratio / 2;
  if (name == "sampled_token_k3") return rho * (std::expm1(-ratio) + ratio);
  if (name == "entropy_aware") {
    const double score = Evaluate(Find("sampled_token"), at).loss * log_py;
    if (at.teacher_entropy <= Find(name).entropy_threshold) return score;
    return score + Evaluate(Find("forward_kl"), moved).loss;
  }
  if (name == "policy_gradient") return -rho * std::exp(log_py - frozen_log_py) * at.advantage;
  if (name == "vopd") {
    return (frozen_loss - rho * Evaluate(Find("normalized"), at).loss) * log_py;
  }
  ADD_FAILURE() << "objective " << name << " is marked kScoreFunction: write its surrogate here";
  return 0;
}

constexpr int32_t kVocabulary = 9;

// Calls f for rows with k = 1..V on the teacher's, the student's and the union of both top-k; y
// inside and outside of the support, on- and off-policy, a teacher below and above entropy_aware's
// threshold.
void ForRows(const std::function<void(const DenseRow<double>&, const std::string&)>& f,
             uint32_t traits = 0) {
  uint64_t seed = 0;
  for (const std::string kind : {"teacher", "student", "union"}) {
    for (int32_t k = traits & kNeedsFullVocabulary ? kVocabulary : 1; k <= kVocabulary; ++k) {
      for (int32_t sampled : {0, 4, 8}) {
        const std::vector<double> logits = RandomLogits(kVocabulary, 2, ++seed);
        const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 2, ++seed));
        std::vector<int32_t> support = Largest(kind == "student" ? logits : log_q, k);
        if (kind == "union") {
          for (int32_t id : Largest(logits, k)) {
            if (std::find(support.begin(), support.end(), id) == support.end()) {
              support.push_back(id);
            }
          }
        }
        DenseRow<double> row = MakeRowOn(support, logits, log_q, sampled);
        row.off_policy = seed % 4 == 0;
        row.log_behavior = LogSoftmax(logits)[sampled] + 0.3;
        if (seed % 3 == 0) row.teacher_entropy = 0.1;
        f(row, kind + "'s top " + std::to_string(k) + ", y " + std::to_string(sampled));
      }
    }
  }
}

// If a name occurred twice, only the first of the two would be found.
TEST(ObjectiveRegistry, FindsEveryNameAndNoOther) {
  ASSERT_FALSE(kObjectives.empty());
  for (const ObjectiveInfo& info : kObjectives) {
    const Objective found = Find(std::string(info.name));
    EXPECT_EQ(found.kind, info.kind) << info.name;
    EXPECT_EQ(InfoOf(found).name, info.name);
    EXPECT_FALSE(info.summary.empty()) << info.name;
  }
  EXPECT_FALSE(FindObjective("ta_op").has_value());
  EXPECT_FALSE(FindObjective("").has_value());
}

// Central differences with step 1e-5 in float64 have an error of 2e-11 times the third derivative
// (k3's is large).
TEST(ObjectiveGradient, MatchesFiniteDifferences) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-7;
  for (const ObjectiveInfo& info : kObjectives) {
    const std::string name(info.name);
    ForRows(
        [&](const DenseRow<double>& row, const std::string& what) {
          Objective objective = Find(name);
          objective.beta = 0.3;
          const DenseResult<double> result = Evaluate(objective, row);
          for (int32_t v = 0; v < kVocabulary; ++v) {
            std::vector<double> high = row.logits;
            std::vector<double> low = row.logits;
            high[v] += kStep;
            low[v] -= kStep;
            const auto value = [&](const std::vector<double>& logits) {
              if (info.traits & kScoreFunction) return Surrogate(name, row, logits);
              DenseRow<double> moved = row;
              moved.logits = logits;
              return Evaluate(objective, moved).loss;
            };
            const double difference = (value(high) - value(low)) / (2 * kStep);
            EXPECT_NEAR(result.gradient[v], difference, kTolerance * (1 + std::abs(difference)))
                << name << ", " << what << ", logit " << v;
          }
        },
        info.traits);
  }
}

// A loss of softmax(z) does not change when all logits move, so its gradient sums to zero.
TEST(ObjectiveGradient, SumsToZeroAndIgnoresShifts) {
  for (const ObjectiveInfo& info : kObjectives) {
    ForRows(
        [&](const DenseRow<double>& row, const std::string& what) {
          const Objective objective = Find(std::string(info.name));
          const DenseResult<double> result = Evaluate(objective, row);
          const double sum = std::accumulate(result.gradient.begin(), result.gradient.end(), 0.0);
          EXPECT_NEAR(sum, 0, 1e-12 * (1 + std::abs(result.loss))) << info.name << ", " << what;
          DenseRow<double> moved = row;
          for (double& z : moved.logits) z += 1000;
          const DenseResult<double> shifted = Evaluate(objective, moved);
          EXPECT_NEAR(shifted.loss, result.loss, 1e-10) << info.name << ", " << what;
          for (int32_t v = 0; v < kVocabulary; ++v) {
            EXPECT_NEAR(shifted.gradient[v], result.gradient[v], 1e-10)
                << info.name << ", " << what;
          }
        },
        info.traits);
  }
}

// support_gradient is a p + b with the b of docs/objectives.md.
TEST(ObjectiveGradient, SupportPartIsDensePlusSparse) {
  ForRows([](const DenseRow<double>& row, const std::string& what) {
    const std::vector<double> log_p_all = LogSoftmax(row.logits);
    const DenseResult<double> result = Evaluate(Find("ta_opd"), row);
    const double log_mass_tail = [&] {
      std::vector<double> rest;
      for (int32_t v = 0; v < kVocabulary; ++v) {
        if (!row.Inside(v)) rest.push_back(log_p_all[v]);
      }
      return LogSumExp(rest.data(), static_cast<int32_t>(rest.size()));
    }();
    const double tail_ratio = log_mass_tail == -kInf ? 0 : log_mass_tail - row.teacher_tail;
    for (std::size_t j = 0; j < row.support.size(); ++j) {
      const double p = std::exp(log_p_all[row.support[j]]);
      const double b = p * (log_p_all[row.support[j]] - row.teacher[j] - tail_ratio);
      EXPECT_NEAR(result.gradient[row.support[j]], (tail_ratio - result.loss) * p + b, 1e-12)
          << what;
    }
  });
}

// Proposition (bound): equal for k = V, otherwise below.
TEST(TaOpd, IsALowerBoundOfTheFullReverseKl) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const std::vector<double> logits = RandomLogits(kVocabulary, 3, seed);
    const std::vector<double> log_q = LogSoftmax(RandomLogits(kVocabulary, 3, seed + 1000));
    const double full = FullReverseKl(LogSoftmax(logits), log_q);
    double before = -1e-12;
    for (int32_t k = 1; k <= kVocabulary; ++k) {
      const double loss = Evaluate(Find("ta_opd"), MakeRow(logits, log_q, k, 0)).loss;
      EXPECT_LE(loss, full + 1e-12);
      EXPECT_GE(loss, before - 1e-12) << "a finer partition has no smaller divergence";
      before = loss;
    }
    EXPECT_NEAR(before, full, 1e-12);
    const DenseResult<double> whole =
        Evaluate(Find("ta_opd"), MakeRow(logits, log_q, kVocabulary, 0));
    const std::vector<double> gradient = FullReverseKlGradient(LogSoftmax(logits), log_q);
    for (int32_t v = 0; v < kVocabulary; ++v) EXPECT_NEAR(whole.gradient[v], gradient[v], 1e-12);
  }
}

TEST(Divergences, AreZeroForEqualDistributionsAndNeverNegative) {
  for (const char* name : {"ta_opd", "normalized", "mopd", "forward_kl", "forward_kl_tail", "jsd",
                           "sampled_token_k2", "sampled_token_k3"}) {
    ForRows([&](const DenseRow<double>& row, const std::string& what) {
      EXPECT_GE(Evaluate(Find(name), row).loss, -1e-14) << name << ", " << what;
      const DenseRow<double> equal = MakeRow(row.logits, LogSoftmax(row.logits),
                                             static_cast<int32_t>(row.support.size()), row.sampled);
      const DenseResult<double> result = Evaluate(Find(name), equal);
      EXPECT_NEAR(result.loss, 0, 1e-14) << name << ", " << what;
      for (double g : result.gradient) EXPECT_NEAR(g, 0, 1e-14) << name << ", " << what;
    });
  }
}

// Jsd / beta tends to the forward KL, and Jsd / (1 - beta) to the reverse KL.
TEST(Jsd, TendsToBothKlDivergences) {
  ForRows([](const DenseRow<double>& row, const std::string& what) {
    Objective jsd = Find("jsd");
    jsd.beta = 1e-6;
    const double forward = Evaluate(Find("forward_kl_tail"), row).loss;
    EXPECT_NEAR(Evaluate(jsd, row).loss / jsd.beta, forward, 1e-3 * (1 + forward)) << what;
    jsd.beta = 1 - 1e-6;
    const double reverse = Evaluate(Find("ta_opd"), row).loss;
    EXPECT_NEAR(Evaluate(jsd, row).loss / (1 - jsd.beta), reverse, 1e-3 * (1 + reverse)) << what;
  });
}

template <typename Real>
void ExpectFinite(const ObjectiveInfo& info, const DenseRow<Real>& row, const char* what) {
  const DenseResult<Real> result = Evaluate(Find(std::string(info.name)), row);
  EXPECT_TRUE(std::isfinite(result.loss)) << info.name << ": " << what << ": " << result.loss;
  for (Real g : result.gradient)
    EXPECT_TRUE(std::isfinite(g)) << info.name << ": " << what << ": " << g;
}

// Zero probabilities on either side, in every place where a row can have one.
template <typename Real>
void ExpectFiniteAtTheEdges() {
  const Real inf = std::numeric_limits<Real>::infinity();
  for (const ObjectiveInfo& info : kObjectives) {
    for (int32_t sampled : {0, 3}) {
      const std::vector<Real> logits = {1, 0, -1, 2, 0.5};
      const std::vector<Real> log_q = LogSoftmax(std::vector<Real>{3, 1, 0, -1, -2});
      const DenseRow<Real> plain = MakeRow(logits, log_q, 2, sampled);
      DenseRow<Real> row = plain;
      row.teacher = {0, -inf};
      row.teacher_tail = -inf;
      row.teacher_sampled = -inf;
      ExpectFinite(info, row, "teacher certain of one id");
      row.teacher = {-inf, -inf};
      row.teacher_tail = 0;
      ExpectFinite(info, row, "teacher without mass on the support");
      for (Real big : {Real(90), Real(1e4)}) {
        row = plain;
        row.logits = {big, 0, 0, 0, 0};
        ExpectFinite(info, row, "student certain of an id of the support");
        row.logits = {0, 0, 0, big, 0};
        ExpectFinite(info, row, "student certain of an id of the tail");
        row.logits = {-inf, -inf, 0, 0, 0};
        ExpectFinite(info, row, "student without mass on the support");
        row.logits = {0, 0, -inf, -inf, -inf};
        ExpectFinite(info, row, "student without a tail");
        row.teacher_tail = -inf;
        ExpectFinite(info, row, "neither has a tail");
      }
      row = MakeRow(logits, log_q, 5, sampled);
      ExpectFinite(info, row, "k = V");
      row.off_policy = true;
      row.log_behavior = -inf;
      ExpectFinite(info, row, "y impossible when it was drawn");
      row = MakeRow(logits, log_q, 1, sampled);
      ExpectFinite(info, row, "k = 1");
      row.off_policy = true;
      row.log_behavior = -inf;
      ExpectFinite(info, row, "y outside and impossible when it was drawn");
    }
  }
}
TEST(ObjectiveEdges, AreFiniteInDouble) { ExpectFiniteAtTheEdges<double>(); }
TEST(ObjectiveEdges, AreFiniteInFloat) { ExpectFiniteAtTheEdges<float>(); }

// Mass where the teacher has none is treated as documented: log q = -100, counted.
TEST(ObjectiveEdges, ZeroTeacherMassIsReadAtTheFloorAndCounted) {
  const std::vector<double> logits = {0, 0, 0, 0};  // p = 1/4 each
  DenseRow<double> row = MakeRow(logits, LogSoftmax(logits), 2, 3);
  row.teacher = {std::log(0.5), -kInf};
  row.teacher_tail = std::log(0.5);
  const DenseResult<double> result = Evaluate(Find("ta_opd"), row);
  EXPECT_NEAR(
      result.loss,
      0.25 * std::log(0.25 / 0.5) + 0.25 * (std::log(0.25) + 100) + 0.5 * std::log(0.5 / 0.5),
      1e-12);
  EXPECT_EQ(result.num_limited, 1);
  EXPECT_GT(result.gradient[row.support[1]], 15) << "the student must leave that id";
  row.teacher[1] = -99;
  EXPECT_EQ(Evaluate(Find("ta_opd"), row).num_limited, 0);
}

TEST(ObjectiveEdges, NanTeacherShowsInTheLoss) {
  DenseRow<double> row = MakeRow<double>({1, 2, 3}, LogSoftmax<double>({3, 2, 1}), 2, 0);
  row.teacher[1] = std::nan("");
  EXPECT_TRUE(std::isnan(Evaluate(Find("ta_opd"), row).loss));
  EXPECT_TRUE(std::isnan(Evaluate(Find("normalized"), row).loss));
}

// The tail's log-ratio must not cost accuracy on the support: float32 against float64 for tails of
// any size.
TEST(ObjectiveAccuracy, Float32GradientSurvivesTinyTails) {
  for (double tail_logit : {-5.0, -20.0, -60.0}) {
    const std::vector<double> logits = {1, 0.5, tail_logit, tail_logit - 1};
    const std::vector<double> log_q = LogSoftmax<double>({0.5, 1, -3, -4});
    const std::vector<float> narrow_logits(logits.begin(), logits.end());
    const std::vector<float> narrow_q(log_q.begin(), log_q.end());
    for (const char* name : {"ta_opd", "forward_kl_tail", "jsd"}) {
      const DenseResult<double> wide = Evaluate(Find(name), MakeRow(logits, log_q, 2, 0));
      const DenseResult<float> narrow =
          Evaluate(Find(name), MakeRow(narrow_logits, narrow_q, 2, 0));
      for (int v = 0; v < 2; ++v) {
        EXPECT_NEAR(narrow.gradient[v], wide.gradient[v], 1e-6)
            << name << ", tail logit " << tail_logit;
      }
    }
  }
}

TEST(LogMath, Log1mExpAndTailFromMass) {
  for (double x : {-1e-12, -1e-6, -0.1, -0.6931, -0.6932, -20.0, -50.0}) {
    // Below -20 the series of log(1 - u) is exact after three terms.
    const double expected = (x > -1 ? std::log(-std::expm1(x))
                                    : -std::exp(x) - std::exp(2 * x) / 2 - std::exp(3 * x) / 3);
    EXPECT_NEAR(Log1mExp(x), expected, 1e-14 * std::abs(expected)) << x;
  }
  EXPECT_EQ(Log1mExp(0.0), -kInf);
  bool clamped = false;
  EXPECT_NEAR(LogTailFromLogMass(1e-7, 1e-6, &clamped), std::log(1e-6), 1e-6);
  EXPECT_TRUE(clamped);
  EXPECT_NEAR(LogTailFromLogMass(std::log(0.75), 1e-6, &clamped), std::log(0.25), 1e-14);
  EXPECT_FALSE(clamped);
}

TEST(LogMath, SumsKeepInfinitiesAndNan) {
  EXPECT_EQ(LogAddExp(-kInf, -kInf), -kInf);
  EXPECT_EQ(LogAddExp(-kInf, 2.0), 2.0);
  EXPECT_TRUE(std::isnan(LogAddExp(-kInf, std::nan(""))));
  EXPECT_TRUE(std::isnan(LogAddExp(std::nan(""), 1.0)));
  const double numbers[] = {-kInf, std::nan(""), 1000};
  EXPECT_EQ(LogSumExp(numbers, 0), -kInf);
  EXPECT_EQ(LogSumExp(numbers, 1), -kInf);
  EXPECT_TRUE(std::isnan(LogSumExp(numbers, 2)));
  EXPECT_EQ(LogSumExp(numbers + 2, 1), 1000);

  double p[3] = {};
  EXPECT_EQ(Softmax(numbers, 1, p), -kInf);
  EXPECT_EQ(p[0], 0);
  EXPECT_TRUE(std::isnan(Softmax(numbers, 2, p)));
  EXPECT_TRUE(std::isnan(p[0]) && std::isnan(p[1]));
  const double logits[] = {-kInf, 1000, 1000 + std::log(3)};
  EXPECT_DOUBLE_EQ(Softmax(logits, 3, p), 1000 + std::log(4));
  EXPECT_EQ(p[0], 0);
  // The logits have 12 digits after the point.
  EXPECT_NEAR(p[1], 0.25, 1e-12);
  EXPECT_NEAR(p[2], 0.75, 1e-12);
}

}  // namespace
}  // namespace taopd::testing
