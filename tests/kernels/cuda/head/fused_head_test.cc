// The student's head of kernels/cuda against plain rows and products in float64: on a GPU
// (tests/gpu), and the same source on the CPU through the emulated runtime.
#include "taopd/head/fused_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "taopd/head/dense_row.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_head.h"
#include "tests/kernels/cuda/head_problem.h"

namespace taopd::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// float32 products and exponentials in another order than the CPU's.
constexpr double kFloatTolerance = 2e-5;
// E, the scaled hidden states and d hidden are rounded to bfloat16: 2^-9 of each.
constexpr double kBfloat16Tolerance = 1e-2;

struct Targets {
  int32_t k = 0;
  std::vector<int32_t> support_ids, sampled_ids;
  std::vector<float> teacher_log_probs, teacher_log_tail, teacher_sampled, teacher_entropy,
      behavior, advantages, weights;
};

struct Case {
  HeadMatrices matrices;
  Targets targets;
  ObjectiveTerms objective;
  double temperature = 1;
  bool top_k_metrics = false;
};

Targets RandomTargets(int64_t num_rows, int64_t vocab_size, int32_t k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Targets t = {.k = k};
  for (int64_t n = 0; n < num_rows; ++n) {
    std::vector<double> q(vocab_size);
    double sum = 0;
    for (double& value : q) sum += value = std::exp(2 * normal(random));
    std::vector<int32_t> ids(vocab_size);
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return q[a] > q[b]; });
    double tail = 0;
    double entropy = 0;
    for (int64_t i = 0; i < vocab_size; ++i) {
      const double p = q[ids[i]] / sum;
      entropy -= p * std::log(p);
      if (i >= k) {
        tail += p;
        continue;
      }
      t.support_ids.push_back(ids[i]);
      t.teacher_log_probs.push_back(static_cast<float>(std::log(p)));
    }
    const int32_t y = static_cast<int32_t>(random() % vocab_size);
    t.sampled_ids.push_back(y);
    t.teacher_log_tail.push_back(tail == 0 ? -kInf : static_cast<float>(std::log(tail)));
    t.teacher_sampled.push_back(static_cast<float>(std::log(q[y] / sum)));
    t.teacher_entropy.push_back(static_cast<float>(entropy));
    t.advantages.push_back(n % 2 == 0 ? 0.75f : -1.25f);
    t.weights.push_back(0.1f + static_cast<float>(random() % 1000) / 500.0f);
  }
  return t;
}

ObjectiveTerms Named(std::string_view name) {
  Objective objective = FindObjective(name).value();
  objective.beta = 0.3;
  return objective;
}

Case MakeCase(std::string_view name, DataType dtype, int64_t num_rows, int64_t hidden_size,
              int64_t vocab_size, int32_t k, uint64_t seed) {
  Case c = {.matrices = RandomMatrices(dtype, num_rows, hidden_size, vocab_size, seed),
            .objective = Named(name)};
  if (TraitsOf(c.objective) & kNeedsFullVocabulary) k = static_cast<int32_t>(vocab_size);
  c.targets = RandomTargets(num_rows, vocab_size, k, seed + 1000);
  return c;
}

struct Results {
  std::vector<float> loss, metrics, d_hidden, d_lm_head;
  int32_t errors = 0;
  std::string problem;
};

constexpr int64_t kMegabyte = 1 << 20;
constexpr float kInitialDLmHead = 0.5f;  // d lm_head is added to this

Results RunOnDevice(const Case& c, int64_t workspace_bytes = 64 * kMegabyte, bool d_hidden = true,
                    bool d_lm_head = true) {
  const HeadMatrices& m = c.matrices;
  const Targets& t = c.targets;
  DeviceHead head(m, workspace_bytes);
  DeviceArray<int32_t> support_ids(t.support_ids), sampled_ids(t.sampled_ids);
  DeviceArray<float> log_probs(t.teacher_log_probs), log_tail(t.teacher_log_tail),
      teacher_sampled(t.teacher_sampled), teacher_entropy(t.teacher_entropy), behavior(t.behavior),
      advantages(t.advantages), weights(t.weights);
  DeviceArray<float> loss(std::vector<float>(m.num_rows));
  DeviceArray<float> metrics(std::vector<float>(m.num_rows * kNumHeadMetrics));
  DeviceArray<uint8_t> hidden_gradient(Empty(m.dtype, m.num_rows * m.hidden_size).bytes);
  DeviceArray<float> lm_head_gradient(
      std::vector<float>(m.vocab_size * m.hidden_size, kInitialDLmHead));
  DeviceArray<int32_t> errors(std::vector<int32_t>(1));

  FusedHeadProblem problem;
  static_cast<HeadInputs&>(problem) = head.Inputs(c.temperature);
  problem.targets.support_ids_Nk = support_ids.OrNull();
  problem.targets.teacher_log_probs_Nk = log_probs.OrNull();
  problem.targets.k = t.k;
  problem.targets.teacher_log_tail_N = log_tail.OrNull();
  problem.targets.sampled_ids_N = sampled_ids.data();
  problem.targets.teacher_sampled_log_probs_N = teacher_sampled.OrNull();
  problem.targets.teacher_entropy_N = teacher_entropy.OrNull();
  problem.targets.behavior_log_probs_N = behavior.OrNull();
  problem.targets.advantages_N = advantages.OrNull();
  problem.targets.row_weights_N = weights.data();
  problem.objective = c.objective;
  problem.top_k_metrics = c.top_k_metrics;
  FusedHeadResult result = {.loss_N = loss.data(), .metrics_NM = metrics.data()};
  if (d_hidden) result.d_hidden_NH = hidden_gradient.data();
  if (d_lm_head) result.d_lm_head_VH = lm_head_gradient.data();
  result.errors = errors.data();
  Results results = {.problem = FusedHead(problem, result, head.Context())};
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  results.loss = loss.Values();
  results.metrics = metrics.Values();
  results.d_hidden = Stored{m.dtype, hidden_gradient.Values()}.Values();
  results.d_lm_head = lm_head_gradient.Values();
  results.errors = errors.Values()[0];
  return results;
}

// Computes the results with the plain float64 row (taopd/head/dense_row.h).
Results Expected(const Case& c) {
  const HeadMatrices& m = c.matrices;
  const Targets& t = c.targets;
  Results expected;
  std::vector<double> d_lm_head(m.vocab_size * m.hidden_size, kInitialDLmHead);
  const auto value = [](const std::vector<float>& values, int64_t n) {
    return values.empty() ? kNan : values[n];
  };
  const double scale = static_cast<float>(1 / c.temperature);
  for (int64_t n = 0; n < m.num_rows; ++n) {
    cpu::DenseRow dense;
    for (float logit : m.Logits(n)) dense.logits.push_back(logit * scale);
    for (int64_t j = n * t.k; j < (n + 1) * t.k && t.support_ids[j] >= 0; ++j) {
      dense.support_ids.push_back(t.support_ids[j]);
      dense.teacher_log_probs.push_back(t.teacher_log_probs[j]);
    }
    dense.teacher_log_tail = value(t.teacher_log_tail, n);
    dense.sampled_id = t.sampled_ids[n];
    dense.teacher_sampled_log_prob = value(t.teacher_sampled, n);
    dense.teacher_entropy = value(t.teacher_entropy, n);
    dense.advantage = value(t.advantages, n);
    if (!t.behavior.empty()) dense.behavior_log_prob = t.behavior[n];
    cpu::DenseRowResult result;
    EXPECT_EQ(cpu::EvaluateDenseRow(c.objective, dense, &result), cpu::RowStatus::kOk);
    if (!c.top_k_metrics) {
      result.metrics[kTopKOverlap] = result.metrics[kTopKOverlapAdvantage] = kNan;
    }
    std::vector<double> row = result.gradient;
    for (double& d : row) d *= scale * t.weights[n];
    expected.loss.push_back(static_cast<float>(result.loss));
    for (double metric : result.metrics) expected.metrics.push_back(static_cast<float>(metric));
    for (int64_t h = 0; h < m.hidden_size; ++h) {
      double sum = 0;
      for (int64_t v = 0; v < m.vocab_size; ++v) {
        sum += row[v] * m.lm_head_VH[v * m.hidden_size + h];
        d_lm_head[v * m.hidden_size + h] += row[v] * m.hidden_NH[n * m.hidden_size + h];
      }
      expected.d_hidden.push_back(static_cast<float>(sum));
    }
  }
  expected.d_lm_head.assign(d_lm_head.begin(), d_lm_head.end());
  return expected;
}

// The largest value that rounding may leave of a gradient that is exactly zero, also after it was
// added to kInitialDLmHead.
constexpr double kZeroGradient = 1e-7;

// Compares relative to the largest element of the gradient, however small that is.
void ExpectGradient(const std::vector<float>& actual, const std::vector<float>& expected,
                    double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (float value : expected) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest + kZeroGradient)
        << what << " [" << i << "], of size " << largest;
  }
}

// Compares d lm_head without kInitialDLmHead in two parts, each relative to its own largest
// element: the rows that are the support or the sampled token of some position, and all others. The
// others have only the dense gradient a p(v), which is orders of magnitude smaller.
void ExpectHeadGradient(const Case& c, const std::vector<float>& actual,
                        const std::vector<float>& expected, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  std::vector<bool> named(c.matrices.vocab_size, false);
  for (const std::vector<int32_t>* ids : {&c.targets.support_ids, &c.targets.sampled_ids}) {
    for (int32_t id : *ids) {
      if (id >= 0) named[id] = true;
    }
  }
  for (const bool entries : {true, false}) {
    std::vector<float> ours, wanted;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (named[i / c.matrices.hidden_size] != entries) continue;
      ours.push_back(actual[i] - kInitialDLmHead);
      wanted.push_back(expected[i] - kInitialDLmHead);
    }
    ExpectGradient(ours, wanted, tolerance, what + (entries ? ", entries" : ", dense part"));
  }
}

void ExpectMatchesTheCpu(const Case& c, const std::string& what,
                         int64_t workspace_bytes = 64 * kMegabyte) {
  const Results actual = RunOnDevice(c, workspace_bytes);
  const Results expected = Expected(c);
  ASSERT_EQ(actual.problem, "") << what;
  EXPECT_EQ(actual.errors, 0) << what;
  const double gradient_tolerance =
      c.matrices.dtype == DataType::kFloat32 ? kFloatTolerance : kBfloat16Tolerance;
  ExpectNear(actual.loss, expected.loss, kFloatTolerance, what + ": loss");
  ExpectNear(actual.metrics, expected.metrics, kFloatTolerance, what + ": metrics");
  ExpectGradient(actual.d_hidden, expected.d_hidden, gradient_tolerance, what + ": d hidden");
  ExpectHeadGradient(c, actual.d_lm_head, expected.d_lm_head, gradient_tolerance,
                     what + ": d lm_head");
}

using FusedHeadTest = CudaTest;

TEST_F(FusedHeadTest, MatchesTheCpuForEveryObjective) {
  struct Shape {
    int64_t num_rows, hidden_size, vocab_size;
    int32_t k;
  };
  const Shape shapes[] = {
      {1, 1, 1, 1}, {2, 5, 7, 1}, {3, 4, 17, 16}, {2, 8, 33, 33}, {3, 16, 1029, 13}};
  for (const ObjectiveInfo& info : kObjectives) {
    uint64_t seed = static_cast<uint64_t>(info.kind);
    for (const Shape& shape : shapes) {
      // Types, temperatures and behavior vary in turn, so that each objective is combined with all
      // of them.
      const DataType dtype = ++seed % 2 ? DataType::kFloat32 : DataType::kBFloat16;
      Case c = MakeCase(info.name, dtype, shape.num_rows, shape.hidden_size, shape.vocab_size,
                        shape.k, seed);
      c.top_k_metrics = seed % 4 < 2;
      if (seed % 3 == 0) c.temperature = 0.6;
      if (seed % 5 < 2) {
        c.targets.behavior = c.targets.teacher_sampled;
        for (float& value : c.targets.behavior) value -= 0.5f;
      }
      ExpectMatchesTheCpu(c, std::string(info.name) + ", V " + std::to_string(shape.vocab_size) +
                                 ", case " + std::to_string(seed));
      if (HasFatalFailure()) return;
    }
  }
}

// More columns than a block reads at once, large supports, and the student's own top-k.
TEST_F(FusedHeadTest, LargeVocabulariesAndSupports) {
  for (const char* name : {"sc_ta_opd", "normalized"}) {
    for (int32_t k : {2, 64, 1024}) {
      for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
        Case c = MakeCase(name, dtype, 1, 3, 20011, k, 70 + k);
        c.top_k_metrics = true;
        ExpectMatchesTheCpu(c, std::string(name) + ", k " + std::to_string(k));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Logits rise (fall) along the vocabulary by hundreds of nats: the reference moves many times, and
// the tail is far below or above the support.
TEST_F(FusedHeadTest, ReferenceMovesWithTheLogits) {
  for (double slope : {400.0, -400.0}) {
    for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
      for (const char* name : {"ta_opd", "forward_kl_tail", "cross_entropy"}) {
        Case c = MakeCase(name, dtype, 2, 2, 40009, 5, 90);
        for (int64_t v = 0; v < 40009; ++v) {
          // The steps are exact in bfloat16, so neighbors tie.
          c.matrices.lm_head_VH[v * 2] = static_cast<float>(std::round(slope * v / 40009));
          c.matrices.lm_head_VH[v * 2 + 1] = 0.01f * static_cast<float>(v % 7);
        }
        c.matrices.hidden_NH = {1, 1, 0.5f, -1};
        c.matrices.Round();
        ExpectMatchesTheCpu(c, std::string(name) + ", slope " + std::to_string(slope));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// 8,192 logits, then as many that are 19 nats larger, which do not move the reference, and one that
// moves it and is only 2 nats larger than those: their shares of all sums are large afterwards. The
// gradients cancel too much to be compared.
TEST_F(FusedHeadTest, ReferenceMovesPastManyLogitsThatCount) {
  constexpr int64_t kTile = 8192;
  Case c = MakeCase("ta_opd", DataType::kFloat32, 2, 2, 3 * kTile, 5, 91);
  for (int64_t v = 0; v < 3 * kTile; ++v) {
    const bool is_second = v / kTile == 1;
    c.matrices.lm_head_VH[v * 2] = v == 2 * kTile + 7 ? 21.0f : is_second ? 19.0f : 0.0f;
    c.matrices.lm_head_VH[v * 2 + 1] = 0.01f * static_cast<float>(v % 7);
  }
  c.matrices.hidden_NH = {1, 1, 1, -1};
  const Results actual = RunOnDevice(c), expected = Expected(c);
  ExpectNear(actual.loss, expected.loss, kFloatTolerance, "loss");
  ExpectNear(actual.metrics, expected.metrics, kFloatTolerance, "metrics");
}

TEST_F(FusedHeadTest, LinearCombinationsPaddedSupportsAndDerivedTails) {
  Case c = MakeCase("ta_opd", DataType::kFloat32, 4, 6, 50, 6, 5);
  c.objective.num_terms = 3;
  c.objective.term[0] = {Named("ta_opd").term[0].objective, 0.5};
  c.objective.term[1] = {Named("forward_kl").term[0].objective, 2};
  c.objective.term[2] = {Named("cross_entropy").term[0].objective, -0.25};
  c.targets.support_ids[5] = -1;
  c.targets.support_ids[4] = -1;
  c.targets.support_ids[11] = -1;
  c.targets.teacher_log_tail[0] = kNan;
  c.targets.teacher_log_tail[1] = kNan;
  c.targets.teacher_log_probs[13] = -kInf;
  c.targets.weights[3] = 0;
  c.targets.sampled_ids[2] = c.targets.support_ids[14];
  c.top_k_metrics = true;
  ExpectMatchesTheCpu(c, "combination");
  c.objective = Named("normalized");
  ExpectMatchesTheCpu(c, "no dense gradient");
  c.targets.teacher_log_tail.clear();
  c.objective = Named("sc_ta_opd");
  ExpectMatchesTheCpu(c, "no tails");
  // No teacher.
  c = MakeCase("cross_entropy", DataType::kBFloat16, 3, 8, 300, 0, 6);
  c.targets.teacher_log_tail.clear();
  c.targets.teacher_sampled.clear();
  c.targets.teacher_entropy.clear();
  ExpectMatchesTheCpu(c, "cross entropy");
}

// Ids have more entries than a block reads at a time, and rows more columns than it sums at a time.
TEST_F(FusedHeadTest, IdsInTheSupportOfMostRows) {
  ExpectMatchesTheCpu(MakeCase("normalized", DataType::kFloat32, 400, 2100, 7, 6, 14),
                      "no dense gradient");
}

TEST_F(FusedHeadTest, ChunksDoNotChangeTheResultAndCallsRepeatBitForBit) {
  for (const char* name : {"sc_ta_opd", "forward_kl"}) {
    for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
      const Case c = MakeCase(name, dtype, 5, 8, 503, 9, 7);
      FusedHeadProblem problem;
      problem.dtype = dtype;
      problem.num_rows = 5;
      problem.hidden_size = 8;
      problem.vocab_size = 503;
      problem.targets.k = 9;
      problem.objective = c.objective;
      const int64_t one_row = PlanFusedHead(problem, 0).bytes;
      for (int64_t extra : {int64_t{0}, int64_t{4000}, int64_t{8000}}) {
        const FusedHeadPlan plan = PlanFusedHead(problem, one_row + extra);
        EXPECT_GE(plan.chunk_rows, 1);
        EXPECT_LE(plan.bytes, one_row + extra);
        ExpectMatchesTheCpu(c, std::string(name) + ", rows " + std::to_string(plan.chunk_rows),
                            one_row + extra);
      }
      const Results once = RunOnDevice(c);
      const Results again = RunOnDevice(c);
      EXPECT_EQ(once.loss, again.loss);
      EXPECT_EQ(once.d_hidden, again.d_hidden);
      EXPECT_EQ(once.d_lm_head, again.d_lm_head);
      const Results too_small = RunOnDevice(c, one_row - 1);
      EXPECT_EQ(too_small.problem, "the workspace has " + std::to_string(one_row - 1) +
                                       " bytes, one row takes " + std::to_string(one_row));
    }
  }
}

TEST_F(FusedHeadTest, EachGradientCanBeLeftOut) {
  for (const char* name : {"ta_opd", "normalized"}) {
    const Case c = MakeCase(name, DataType::kFloat32, 3, 8, 100, 4, 8);
    const Results both = RunOnDevice(c);
    const Results none = RunOnDevice(c, 64 * kMegabyte, false, false);
    const Results hidden_only = RunOnDevice(c, 64 * kMegabyte, true, false);
    const Results lm_head_only = RunOnDevice(c, 64 * kMegabyte, false, true);
    EXPECT_EQ(none.loss, both.loss);
    EXPECT_EQ(hidden_only.d_hidden, both.d_hidden);
    EXPECT_EQ(lm_head_only.d_lm_head, both.d_lm_head);
    for (float value : none.d_hidden) EXPECT_EQ(value, 0);
    for (float value : hidden_only.d_lm_head) EXPECT_EQ(value, kInitialDLmHead);
  }
}

TEST_F(FusedHeadTest, NanHiddenShowsInThatRowsLossOnly) {
  Case c = MakeCase("ta_opd", DataType::kFloat32, 3, 4, 200, 3, 9);
  c.matrices.hidden_NH[5] = kNan;
  const Results results = RunOnDevice(c);
  EXPECT_TRUE(std::isfinite(results.loss[0]));
  EXPECT_TRUE(std::isnan(results.loss[1]));
  EXPECT_TRUE(std::isfinite(results.loss[2]));
}

TEST_F(FusedHeadTest, WrongIdsAreFlagged) {
  const Case good = MakeCase("ta_opd", DataType::kBFloat16, 3, 4, 40, 3, 10);
  const auto errors = [](const Case& c) {
    const Results results = RunOnDevice(c);
    EXPECT_EQ(results.problem, "");
    return results.errors;
  };
  EXPECT_EQ(errors(good), 0);
  for (int32_t id :
       {-2, 40, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    Case c = good;
    c.targets.support_ids[4] = id;
    EXPECT_EQ(errors(c), kHeadSupportIdOutOfRange) << id;
    c.objective = Named("normalized");
    EXPECT_EQ(errors(c), kHeadSupportIdOutOfRange) << id;
    c = good;
    c.targets.sampled_ids[1] = id;
    EXPECT_EQ(errors(c), kHeadSampledIdOutOfRange) << id;
  }
  Case c = good;
  c.targets.support_ids[3] = c.targets.support_ids[5];
  EXPECT_EQ(errors(c), kHeadDuplicateSupportId);
  c = good;
  c.targets.support_ids[4] = -1;
  EXPECT_EQ(errors(c), kHeadIdAfterPadding);
  c = good;
  for (int32_t j : {3, 4, 5}) c.targets.support_ids[j] = -1;
  EXPECT_EQ(errors(c), kHeadEmptySupport);
  c = MakeCase("full", DataType::kFloat32, 2, 4, 12, 12, 11);
  c.targets.support_ids[11] = -1;
  EXPECT_EQ(errors(c), kHeadIncompleteSupport);
}

TEST_F(FusedHeadTest, RefusesWrongArgumentsByName) {
  const Case good = MakeCase("jsd", DataType::kFloat32, 3, 4, 40, 3, 12);
  const auto expect = [&](const char* problem, void (*change)(Case&)) {
    Case c = good;
    change(c);
    EXPECT_EQ(RunOnDevice(c).problem, problem);
  };
  expect("temperature is 0, must be positive", [](Case& c) { c.temperature = 0; });
  expect("beta is 1, must be above 0 and below 1 for objective jsd",
         [](Case& c) { c.objective.term[0].objective.beta = 1; });
  expect("k is 0; objective jsd needs a support", [](Case& c) { c.targets.k = 0; });
  expect("k is 41, must be in [0, 40]", [](Case& c) { c.targets.k = 41; });
  expect("teacher_sampled_log_probs is missing; objective ema_pg needs it", [](Case& c) {
    c.targets.teacher_sampled.clear();
    c.objective = Named("ema_pg");
  });
}

TEST_F(FusedHeadTest, NoRows) {
  const Case c = MakeCase("ta_opd", DataType::kFloat32, 0, 4, 40, 3, 13);
  EXPECT_EQ(RunOnDevice(c).problem, "");
}

}  // namespace
}  // namespace taopd::testing
