#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int64_t size, uint64_t seed, double scale = 2.0) {
  RandomStream random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(scale * random.NextNormal());
  return logits;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p(logits.size());
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (size_t v = 0; v < p.size(); ++v) sum += p[v] = std::exp((logits[v] - largest) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// Returns the distribution after top-k and then top-p, by sorting everything.
std::vector<double> Truncated(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<double> p = Softmax(logits, params.temperature);
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && params.top_k < static_cast<int>(order.size())) order.resize(params.top_k);
  double mass = 0.0;
  for (int v : order) mass += p[v];
  double cumulative = 0.0;
  size_t kept = 0;
  while (kept < order.size() && cumulative < params.top_p * mass) cumulative += p[order[kept++]];
  order.resize(kept);
  std::vector<double> result(p.size(), 0.0);
  for (int v : order) result[v] = p[v] / cumulative;
  return result;
}

// Returns the upper 1e-4 quantile of chi-square by Wilson and Hilferty's approximation. The seeds
// are fixed, so the test always passes or always fails.
double ChiSquareLimit(int degrees) {
  const double d = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - d + 3.719 * std::sqrt(d), 3);
}

void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& base,
                        int num_draws) {
  const std::vector<double> expected = Truncated(logits, base);
  std::vector<int> counts(logits.size());
  Sampler sampler;
  for (int i = 0; i < num_draws; ++i) {
    // Half of the draws are steps of one sequence, half have different seeds.
    SamplingParams params = base;
    params.seed = i % 2 == 0 ? 7 : 1000 + i;
    ASSERT_OK_AND_ASSIGN(const SampledToken token,
                         sampler.Sample(logits, params, nullptr, i % 2 == 0 ? i : 0));
    ++counts[token.id];
  }
  double chi_square = 0.0;
  int num_possible = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (expected[v] == 0.0) {
      EXPECT_EQ(counts[v], 0) << "id " << v << " was cut and drawn";
      continue;
    }
    ++num_possible;
    const double mean = expected[v] * num_draws;
    chi_square += (counts[v] - mean) * (counts[v] - mean) / mean;
  }
  if (num_possible > 1) {
    EXPECT_LT(chi_square, ChiSquareLimit(num_possible - 1)) << num_possible << " ids";
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  SamplingParams params;
  ExpectDistribution(RandomLogits(20, 1, 1.0), params, 20000);
  params.temperature = 0.5f;
  ExpectDistribution(RandomLogits(12, 2, 0.7), params, 20000);
  params.temperature = 3.0f;
  ExpectDistribution(RandomLogits(33, 3), params, 20000);
}

TEST(Sampler, DrawsFromWhatTopKAndTopPLeave) {
  struct Case {
    float top_p;
    int32_t top_k;
  };
  for (const Case& c : {Case{1.0f, 5}, Case{0.7f, 0}, Case{0.6f, 9}, Case{1.0f, 1}, Case{1e-6f, 0},
                        Case{0.9f, 500}}) {
    SamplingParams params;
    params.top_p = c.top_p;
    params.top_k = c.top_k;
    params.temperature = 1.3f;
    SCOPED_TRACE(Concat("top_p ", c.top_p, " top_k ", c.top_k));
    ExpectDistribution(RandomLogits(40, 4, 1.0), params, 10000);
  }
}

// The nucleus is wider than the first part that is sorted.
TEST(Sampler, TopPOfANearlyFlatLargeVocabulary) {
  const std::vector<float> logits = RandomLogits(3000, 5, 0.01);
  SamplingParams params;
  params.top_p = 0.5f;
  const std::vector<double> expected = Truncated(logits, params);
  Sampler sampler;
  std::set<int32_t> seen;
  for (int i = 0; i < 6000; ++i) {
    ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample(logits, params, nullptr, i));
    EXPECT_GT(expected[token.id], 0.0) << token.id;
    seen.insert(token.id);
  }
  EXPECT_GT(seen.size(), 1300u);  // of about 1500
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfEquals) {
  SamplingParams params;
  params.temperature = 0.0f;
  params.top_k = 3;
  params.top_p = 0.1f;
  Sampler sampler;
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f};
  ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample(logits, params, nullptr, 3));
  EXPECT_EQ(token.id, 1);
  EXPECT_NEAR(token.log_prob, std::log(Softmax(logits, 1.0)[1]), 1e-6);  // under temperature 1
}

TEST(Sampler, LogProbsAreThoseBeforeTheCut) {
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    const std::vector<float> logits = RandomLogits(500, 6, 5.0);
    const std::vector<double> p = Softmax(logits, temperature);
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = 20;
    params.top_p = 0.8f;
    params.num_log_probs = 4;
    params.top_log_probs_mode = LogProbsMode::kProcessed;
    Sampler sampler;
    for (int i = 0; i < 50; ++i) {
      ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample(logits, params, nullptr, i));
      EXPECT_NEAR(token.log_prob, std::log(p[token.id]), 1e-5);
    }
    std::vector<int32_t> ids;
    std::vector<float> log_probs;
    sampler.AppendTop(4, &ids, &log_probs);
    for (int j = 0; j < 4; ++j) {
      int above = 0;
      for (float logit : logits) above += logit > logits[ids[j]];
      EXPECT_EQ(above, j);
      EXPECT_NEAR(log_probs[j], std::log(p[ids[j]]), 1e-5);
    }
  }
}

TEST(Sampler, ADrawDependsOnSeedAndStepOnly) {
  const std::vector<float> logits = RandomLogits(64, 7, 0.5);
  SamplingParams params;
  params.seed = 11;
  Sampler one;
  std::vector<int32_t> forward;
  for (int i = 0; i < 32; ++i) forward.push_back(one.Sample(logits, params, nullptr, i)->id);
  for (int i = 31; i >= 0; --i) {
    Sampler fresh;
    EXPECT_EQ(fresh.Sample(logits, params, nullptr, i)->id, forward[i]);
  }
  params.seed = 12;
  int num_equal = 0;
  for (int i = 0; i < 32; ++i)
    num_equal += one.Sample(logits, params, nullptr, i)->id == forward[i];
  EXPECT_LT(num_equal, 10);
}

TEST(Sampler, NeverDrawsTheImpossible) {
  std::vector<float> logits = {-kInfinity, 0.0f, -kInfinity, 0.0f, -kInfinity};
  SamplingParams params;
  Sampler sampler;
  std::map<int32_t, int> counts;
  for (int i = 0; i < 1000; ++i) {
    params.top_k = i % 2 == 0 ? 0 : 4;
    ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample(logits, params, nullptr, i));
    ++counts[token.id];
  }
  EXPECT_EQ(counts[1] + counts[3], 1000);
  EXPECT_GT(counts[1], 400);
  EXPECT_GT(counts[3], 400);
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits = RandomLogits(50, 8);
  SamplingParams params;
  params.temperature = 1e-38f;
  Sampler sampler;
  const auto largest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample(logits, params, nullptr, 0));
  EXPECT_EQ(token.id, largest);
  EXPECT_EQ(token.log_prob, 0.0f);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  Sampler sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, 1.0f}, std::vector<float>{1.0f, nan},
        std::vector<float>{1.0f, kInfinity}, std::vector<float>{-kInfinity, -kInfinity}}) {
    for (const float temperature : {0.0f, 1.0f}) {
      SamplingParams params;
      params.temperature = temperature;
      EXPECT_ERROR(sampler.Sample(logits, params, nullptr, 0), absl::StatusCode::kInternal,
                   "not finite");
    }
  }
}

}  // namespace
}  // namespace taopd
