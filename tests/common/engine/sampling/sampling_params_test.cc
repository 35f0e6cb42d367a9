// Tests of the meaning of SamplingParams: compares draws with distributions that plain float64
// loops compute in the documented order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/random.h"
#include "common/engine/sampling/sampler.h"
#include "kernels/cpu/isa/isa.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Ids = std::vector<int32_t>;
constexpr int kVocabSize = 24;
constexpr int kNumDraws = 100000;

// Forbids odd ids after the first token.
class EvenIdsOnly final : public LogitMask {
 public:
  absl::StatusOr<bool> Mask(std::span<const int32_t> generated_ids,
                            std::span<uint64_t> allowed_bits) override {
    if (generated_ids.empty()) return false;
    for (uint64_t& word : allowed_bits) {
      EXPECT_EQ(word, ~uint64_t{0});
      word &= 0x5555555555555555;
    }
    return true;
  }
};

class Failing final : public LogitMask {
 public:
  absl::StatusOr<bool> Mask(std::span<const int32_t>, std::span<uint64_t>) override {
    return Internal("the grammar failed");
  }
};

struct Problem {
  std::vector<float> logits;
  SamplingParams params;
  Ids prompt, generated, eos;

  SamplingState State() const {
    SamplingState state(params, prompt, eos);
    for (const int32_t id : generated) state.Append(id);
    return state;
  }
};

// The prompt and the generated ids are chosen to hold likely and unlikely ids.
Problem SomeProblem(const SamplingParams& params = {}) {
  Problem problem = {.params = params};
  RandomStream random(51, "logits");
  for (int v = 0; v < kVocabSize; ++v)
    problem.logits.push_back(static_cast<float>(random.NextNormal()));
  problem.prompt = {0, 1, 2, 3, 4, 5, 5};
  problem.generated = {4, 5, 6, 7, 7, 7, 8};
  problem.eos = {9};
  return problem;
}

std::vector<double> ProcessedLogits(const Problem& problem) {
  const SamplingParams& params = problem.params;
  std::vector<double> z(problem.logits.begin(), problem.logits.end());
  const Ids& generated = problem.generated;
  for (int v = 0; v < kVocabSize; ++v) {
    if (params.mask != nullptr && v % 2 == 1) z[v] = -INFINITY;
    if (params.allowed_token_ids &&
        std::count(params.allowed_token_ids->begin(), params.allowed_token_ids->end(), v) == 0)
      z[v] = -INFINITY;
    for (const Ids& word : params.bad_words_ids) {
      if (word.back() != v || word.size() > generated.size() + 1) continue;
      bool matches = true;
      for (size_t i = 0; i + 1 < word.size(); ++i)
        matches = matches && word[i] == generated[generated.size() + 1 - word.size() + i];
      if (matches) z[v] = -INFINITY;
    }
    const bool ends = std::count(params.stop_token_ids.begin(), params.stop_token_ids.end(), v) +
                          std::count(problem.eos.begin(), problem.eos.end(), v) >
                      0;
    if (ends && static_cast<int64_t>(generated.size()) < params.min_tokens) z[v] = -INFINITY;
    for (const auto& [id, bias] : params.logit_bias.entries())
      if (id == v) z[v] += std::min(100.0, std::max(-100.0, static_cast<double>(bias)));
    const auto count = std::count(generated.begin(), generated.end(), v);
    const bool seen = count > 0 || std::count(problem.prompt.begin(), problem.prompt.end(), v) > 0;
    if (seen) z[v] = z[v] > 0 ? z[v] / params.repetition_penalty : z[v] * params.repetition_penalty;
    z[v] -= static_cast<double>(count) * params.frequency_penalty;
    if (count > 0) z[v] -= params.presence_penalty;
  }
  return z;
}

std::vector<double> Softmax(const std::vector<double>& z, double temperature) {
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (const double x : z) p.push_back(std::exp((x - max) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> Distribution(const Problem& problem) {
  const SamplingParams& params = problem.params;
  std::vector<double> p = Softmax(ProcessedLogits(problem), params.temperature);
  const auto renormalize = [&p] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
  };
  const double max = *std::max_element(p.begin(), p.end());
  for (double& x : p) x = x < params.min_p * max ? 0.0 : x;
  renormalize();
  std::vector<int> order(kVocabSize);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  for (int j = 0; j < kVocabSize; ++j) {
    if (params.top_k > 0 && j >= params.top_k) p[order[j]] = 0.0;
  }
  renormalize();
  double before = 0.0;
  for (const int v : order) {
    const double mass = p[v];
    if (before >= params.top_p && params.top_p < 1.0f) p[v] = 0.0;
    before += mass;
  }
  renormalize();
  return p;
}

// Returns the upper 1e-4 quantile of chi-square by Wilson and Hilferty's approximation. The seeds
// are fixed, so the test always passes or always fails.
double UpperQuantile(int degrees) {
  const double d = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - d + 3.719 * std::sqrt(d), 3);
}

void ExpectDraws(const Problem& problem) {
  const std::vector<double> expected = Distribution(problem);
  SamplingState state = problem.State();
  Sampler sampler;
  SamplingParams params = problem.params;
  std::vector<int> counts(kVocabSize);
  const auto step = static_cast<int64_t>(problem.generated.size());
  for (int i = 0; i < kNumDraws; ++i) {
    // Half of the draws are steps of one sequence, half have different seeds. min_tokens counts
    // steps, too.
    const bool is_step = i % 2 == 0 && params.min_tokens == 0;
    params.seed = is_step ? 7 : 1000 + i;
    ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample({problem.logits}, params, &state,
                                                                  is_step ? step + i : step));
    ++counts[token.id];
  }
  double chi_square = 0.0, rare = 0.0;
  int num_rare = 0, num_groups = 0;
  for (int v = 0; v < kVocabSize; ++v) {
    const double mean = expected[v] * kNumDraws;
    if (mean == 0.0) {
      EXPECT_EQ(counts[v], 0) << "id " << v << " is impossible";
    } else if (mean < 5.0) {
      rare += mean;
      num_rare += counts[v];
    } else {
      chi_square += (counts[v] - mean) * (counts[v] - mean) / mean;
      ++num_groups;
    }
  }
  EXPECT_LE(num_rare, rare + 5 * std::sqrt(rare));
  if (num_groups > 1) {
    EXPECT_LT(chi_square, UpperQuantile(num_groups - 1));
  }
}

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> Cases() {
  return {{"plain", {}},
          {"temperature", {.temperature = 0.6f}},
          {"min_p", {.min_p = 0.2f}},
          {"top_k", {.top_k = 5}},
          {"top_p", {.top_p = 0.7f}},
          {"top_k and top_p", {.temperature = 1.3f, .top_k = 9, .top_p = 0.6f}},
          {"top_k of one", {.top_k = 1}},
          {"top_k beyond the vocabulary", {.top_k = 500}},
          {"tiny top_p", {.top_p = 1e-6f}},
          {"repetition_penalty", {.repetition_penalty = 1.8f}},
          {"frequency_penalty", {.frequency_penalty = 0.7f}},
          {"presence_penalty", {.presence_penalty = -0.9f}},
          {"logit_bias", {.logit_bias = {{2, 1.5f}, {7, -2.0f}, {11, -500.0f}}}},
          {"allowed_token_ids", {.allowed_token_ids = Ids{1, 3, 7, 20, 20}}},
          {"bad_words_ids", {.bad_words_ids = {{2}, {7, 8, 3}, {8, 4}, {7, 5}}}},
          {"min_tokens", {.min_tokens = 8, .stop_token_ids = {3, 12}}},
          {"min_tokens reached", {.min_tokens = 7, .stop_token_ids = {3, 12}}},
          {"min_tokens, ignore_eos", {.min_tokens = 8, .ignore_eos = true}},
          {"mask", {.mask = std::make_shared<EvenIdsOnly>()}},
          {"all of them",
           {.mask = std::make_shared<EvenIdsOnly>(),
            .allowed_token_ids = Ids{0, 1, 2, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20},
            .bad_words_ids = {{7, 8, 4}},
            .min_tokens = 20,
            .logit_bias = {{6, 1.0f}, {8, 0.5f}},
            .repetition_penalty = 1.3f,
            .frequency_penalty = 0.2f,
            .presence_penalty = 0.3f,
            .temperature = 1.4f,
            .min_p = 0.05f,
            .top_k = 8,
            .top_p = 0.9f,
            .stop_token_ids = {12}}}};
}

TEST(SamplingParams, DrawsFollowTheDistribution) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Problem problem = SomeProblem(c.params);
    ExpectDraws(problem);
  }
}

TEST(SamplingParams, GreedyTakesTheLargestProcessedLogit) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Problem problem = SomeProblem(c.params);
    problem.params.temperature = 0.0f;
    const std::vector<double> z = ProcessedLogits(problem);
    const auto largest = std::max_element(z.begin(), z.end()) - z.begin();
    SamplingState state = problem.State();
    Sampler sampler;
    for (const bool log_probs : {true, false}) {
      problem.params.log_probs = log_probs;
      ASSERT_OK_AND_ASSIGN(const SampledToken token,
                           sampler.Sample({problem.logits}, problem.params, &state, 7));
      EXPECT_EQ(token.id, largest);
      if (log_probs) {
        EXPECT_NEAR(token.log_prob, std::log(Softmax(z, 1.0)[largest]), 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(token.log_prob));
      }
    }
  }
}

TEST(SamplingParams, ReportsBothLogProbsAndRanks) {
  for (const Case& c : Cases()) {
    for (const LogProbsMode mode : {LogProbsMode::kRaw, LogProbsMode::kProcessed}) {
      SCOPED_TRACE(c.name);
      Problem problem = SomeProblem(c.params);
      problem.params.raw_log_probs = true;
      problem.params.ranks = true;
      problem.params.num_log_probs = 3;
      problem.params.top_log_probs_mode = mode;
      const std::vector<double> raw = Softmax({problem.logits.begin(), problem.logits.end()}, 1.0);
      const std::vector<double> processed =
          Softmax(ProcessedLogits(problem), problem.params.temperature);
      const std::vector<double>& top = mode == LogProbsMode::kRaw ? raw : processed;
      SamplingState state = problem.State();
      Sampler sampler;
      for (int i = 0; i < 20; ++i) {
        problem.params.seed = i;
        ASSERT_OK_AND_ASSIGN(const SampledToken token,
                             sampler.Sample({problem.logits}, problem.params, &state, 7));
        EXPECT_NEAR(token.log_prob, std::log(processed[token.id]), 1e-5);
        EXPECT_NEAR(token.raw_log_prob, std::log(raw[token.id]), 1e-5);
        EXPECT_EQ(token.rank, std::count_if(top.begin(), top.end(),
                                            [&](double p) { return p >= top[token.id]; }));
        Ids ids;
        std::vector<float> log_probs;
        sampler.AppendTop(&ids, &log_probs);
        for (int j = 0; j < 3; ++j) {
          EXPECT_EQ(
              std::count_if(top.begin(), top.end(), [&](double p) { return p > top[ids[j]]; }), j);
          EXPECT_NEAR(log_probs[j], std::log(top[ids[j]]), 1e-5);
        }
      }
    }
  }
}

// The cases are made by hand: every other order gives another token.
TEST(SamplingParams, OrderOfApplication) {
  Sampler sampler;
  SamplingParams params = {.temperature = 0.0f};
  // The bias makes the logit 1, which the penalty divides to 0.5. The other order gives -1 * 2 + 2
  // = 0.
  params.logit_bias = {{0, 2.0f}};
  params.repetition_penalty = 2.0f;
  Ids prompt = {0};
  SamplingState state(params, prompt, {});
  EXPECT_EQ(sampler.Sample({std::vector<float>{-1.0f, 0.6f}}, params, &state, 0)->id, 1);
  EXPECT_EQ(sampler.Sample({std::vector<float>{-1.0f, 0.4f}}, params, &state, 0)->id, 0);

  // A penalty comes before the temperature: (1 - 2) / 4 is below 0 / 4.
  const SamplingParams cold = {.presence_penalty = 2.0f, .temperature = 4.0f};
  SamplingState with_0(cold, {}, {});
  with_0.Append(0);
  ASSERT_OK_AND_ASSIGN(const SampledToken token,
                       sampler.Sample({std::vector<float>{1.0f, 0.0f}}, cold, &with_0, 1));
  const double p_0 = 1 / (1 + std::exp(0.25));
  EXPECT_NEAR(token.log_prob, std::log(token.id == 0 ? p_0 : 1 - p_0), 1e-6);

  // top_p applies to the ids that top_k keeps: the first two of 0.4, 0.3, 0.2 and 0.1, of which the
  // first has 0.57 >= 0.5. Of all four, two would be needed.
  SamplingParams nucleus = {.top_p = 0.5f};
  std::vector<float> logits;
  for (const double p : {0.4, 0.3, 0.2, 0.1}) logits.push_back(static_cast<float>(std::log(p)));
  for (const int32_t top_k : {0, 2}) {
    nucleus.top_k = top_k;
    int32_t highest = 0;
    for (int i = 0; i < 200; ++i)
      highest = std::max(highest, sampler.Sample({logits}, nucleus, nullptr, i)->id);
    EXPECT_EQ(highest, top_k == 0 ? 1 : 0);
  }
  // top_p applies to the ids that min_p keeps: the two that are at least 0.6 * 0.4.
  nucleus.top_k = 0;
  nucleus.min_p = 0.6f;
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.Sample({logits}, nucleus, nullptr, i)->id, 0);
}

// The mask forbids whole words and part of one, and a row ends within a word.
TEST(SamplingParams, AMaskMayForbidManyIds) {
  class OneIdOnly final : public LogitMask {
   public:
    explicit OneIdOnly(int32_t id) : id_(id) {}
    absl::StatusOr<bool> Mask(std::span<const int32_t>, std::span<uint64_t> allowed_bits) override {
      std::fill(allowed_bits.begin(), allowed_bits.end(), 0);
      allowed_bits[id_ / 64] = uint64_t{1} << (id_ % 64);
      return true;
    }

   private:
    const int32_t id_;
  };
  const std::vector<float> logits(200, 1.0f);
  Sampler sampler;
  for (const int32_t id : {0, 63, 64, 130, 191, 199}) {
    const SamplingParams params = {.mask = std::make_shared<OneIdOnly>(id)};
    ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample({logits}, params, nullptr, 0));
    EXPECT_EQ(token.id, id);
    EXPECT_EQ(token.log_prob, 0.0f);
  }
}

TEST(SamplingParams, BiasesAreClampedTo100) {
  SamplingParams params = {.temperature = 0.0f};
  Sampler sampler;
  for (const float bias : {100.0f, 1000.0f}) {
    params.logit_bias = {{0, bias}};
    EXPECT_EQ(sampler.Sample({std::vector<float>{0.0f, 101.0f}}, params, nullptr, 0)->id, 1);
    params.logit_bias = {{1, -bias}};
    EXPECT_EQ(sampler.Sample({std::vector<float>{0.0f, 101.0f}}, params, nullptr, 0)->id, 1);
  }
}

TEST(LogitBias, TheLastEntryOfAnIdCountsAndCopiesShareTheArray) {
  const LogitBias bias = {{9, 1.0f}, {2, 3.0f}, {9, -2.0f}};
  const std::vector<LogitBias::Entry> expected = {{2, 3.0f}, {9, -2.0f}};
  EXPECT_TRUE(
      std::equal(bias.entries().begin(), bias.entries().end(), expected.begin(), expected.end()));
  const LogitBias copy = bias;
  EXPECT_EQ(copy.entries().data(), bias.entries().data());
  EXPECT_TRUE(LogitBias(std::vector<LogitBias::Entry>()).empty());
}

TEST(SamplingParams, MasksThatForbidEverythingAreNamed) {
  Problem problem = SomeProblem();
  problem.params.allowed_token_ids = Ids{9};
  problem.params.min_tokens = 8;
  SamplingState state = problem.State();
  Sampler sampler;
  EXPECT_ERROR(sampler.Sample({problem.logits}, problem.params, &state, 7), kInvalidArgument,
               "allowed_token_ids, min_tokens");
  const SamplingParams failing = {.mask = std::make_shared<Failing>()};
  EXPECT_ERROR(sampler.Sample({problem.logits}, failing, &state, 7), kInternal,
               "the grammar failed");
  const SamplingParams extreme = {.repetition_penalty = 1e-38f};
  SamplingState seen(extreme, Ids{0}, {});
  EXPECT_ERROR(sampler.Sample({std::vector<float>{30.0f, 1.0f}}, extreme, &seen, 0),
               kInvalidArgument, "repetition_penalty");
}

// The token and all its numbers have the same bits on every instruction set and at every address of
// the row.
TEST(SamplingParams, SameBitsOnEveryInstructionSetAndAtEveryAddress) {
  RandomStream random(52, "bits");
  for (const int64_t size : {1, 17, 1000, 1039, 20011}) {
    std::vector<float> row(size);
    for (float& logit : row) logit = static_cast<float>(3.0 * random.NextNormal());
    std::vector<float> moved(size + 1);
    std::copy(row.begin(), row.end(), moved.begin() + 1);
    for (const float top_p : {1.0f, 0.3f, 0.99f}) {
      for (const int32_t top_k : {0, 40, 5000}) {
        const SamplingParams params = {
            .temperature = 1.7f, .top_k = top_k, .top_p = top_p, .raw_log_probs = true};
        for (int step = 0; step < 5; ++step) {
          Sampler base(cpu::InstructionSet::kBase);
          ASSERT_OK_AND_ASSIGN(const SampledToken expected,
                               base.Sample({row}, params, nullptr, step));
          for (const cpu::InstructionSet set : cpu::kAllInstructionSets) {
            if (!cpu::IsSupported(set)) continue;
            Sampler sampler(set);
            ASSERT_OK_AND_ASSIGN(
                const SampledToken token,
                sampler.Sample({std::span<const float>(moved).subspan(1)}, params, nullptr, step));
            EXPECT_EQ(token.id, expected.id);
            EXPECT_EQ(token.log_prob, expected.log_prob);
            EXPECT_EQ(token.raw_log_prob, expected.raw_log_prob);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace taopd::testing
