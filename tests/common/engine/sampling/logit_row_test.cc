// Compares what a Sampler draws from candidates of a row with what it draws from the whole row.
#include "common/engine/sampling/logit_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/engine/sampling/processors.h"
#include "common/engine/sampling/sampler.h"
#include "kernels/torch/sampling/row_candidates.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Ids = std::vector<int32_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The error of sums of float32 weights (kernels/cpu/math/weight_row.h).
constexpr double kSumTolerance = 4e-6;
// The rounding of a log-prob to float32, and twice that of 1 / temperature.
constexpr double kRounding = 2e-7;

// A row, and what the request asks of it.
struct Problem {
  std::vector<float> logits;
  SamplingParams params;
  Ids prompt, generated;

  SamplingState State() const {
    SamplingState state(params, prompt, /*eos_token_ids=*/Ids{1});
    for (const int32_t id : generated) state.Append(id);
    return state;
  }
};

struct Sampled {
  absl::StatusOr<SampledToken> token;
  Ids top_ids;
  std::vector<float> top_log_probs;
};

constexpr int64_t kStep = 5;

Sampled Sample(const LogitRow& row, const Problem& problem) {
  SamplingState state = problem.State();
  Sampler sampler;
  Sampled sampled{sampler.Sample(row, problem.params, &state, kStep), {}, {}};
  if (sampled.token.ok()) sampler.AppendTop(&sampled.top_ids, &sampled.top_log_probs);
  return sampled;
}

Sampled SampleWhole(const Problem& problem) { return Sample({problem.logits, {}, {}}, problem); }

// All problems have rows of the same size.
std::vector<Sampled> SampleFromCandidates(const std::vector<Problem>& problems) {
  std::vector<at::Tensor> logits;
  std::vector<RowToSummarize> rows;
  for (const Problem& problem : problems) {
    const SamplingState state = problem.State();
    rows.push_back({static_cast<int64_t>(logits.size()), problem.params.temperature,
                    ListedIds(problem.params, &state, kStep)});
    logits.push_back(at::tensor(problem.logits));
  }
  const std::vector<RowCandidates> candidates = SummarizeRows(at::stack(logits), rows);
  std::vector<Sampled> sampled;
  for (size_t i = 0; i < problems.size(); ++i) {
    const RowCandidates& of = candidates[i];
    const auto rest_size = static_cast<int64_t>(problems[i].logits.size() - of.ids.size());
    const LogitRow row = {
        of.logits,
        of.ids,
        {rest_size, of.rest_max, of.rest_sum, of.raw_rest_sum, of.rest_sums_before}};
    sampled.push_back(Sample(row, problems[i]));
  }
  return sampled;
}

Sampled SampleFromCandidates(const Problem& problem) {
  return SampleFromCandidates(std::vector<Problem>{problem})[0];
}

void ExpectLogProb(float actual, float expected) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual));
  } else if (std::isinf(expected)) {
    EXPECT_EQ(actual, expected);
  } else {
    EXPECT_NEAR(actual, expected, kSumTolerance + kRounding * std::abs(expected));
  }
}

void ExpectSame(const Sampled& actual, const Sampled& expected) {
  ASSERT_EQ(actual.token.status(), expected.token.status());
  if (!expected.token.ok()) return;
  EXPECT_EQ(actual.token->id, expected.token->id);
  EXPECT_EQ(actual.token->rank, expected.token->rank);
  ExpectLogProb(actual.token->log_prob, expected.token->log_prob);
  ExpectLogProb(actual.token->raw_log_prob, expected.token->raw_log_prob);
  EXPECT_EQ(actual.top_ids, expected.top_ids);
  ASSERT_EQ(actual.top_log_probs.size(), expected.top_log_probs.size());
  for (size_t i = 0; i < expected.top_log_probs.size(); ++i)
    ExpectLogProb(actual.top_log_probs[i], expected.top_log_probs[i]);
}

enum Shape { kFlat, kNormal, kWide, kTies, kPeaked, kMostlyForbidden, kNumShapes };

std::vector<float> Row(int shape, int64_t size, RandomStream* random) {
  std::vector<float> row(size);
  for (float& logit : row) {
    const double normal = random->NextNormal();
    double z = 3.0 * normal;
    if (shape == kFlat) z = 0.01 * normal;
    if (shape == kWide) z = 12.0 * normal;
    if (shape == kTies) z = std::round(4.0 * normal) / 2.0;
    if (shape == kMostlyForbidden && random->NextUniform() < 0.9) z = -INFINITY;
    logit = static_cast<float>(z);
  }
  if (shape == kPeaked) row[random->NextBelow(size)] = 40.0f;
  row[random->NextBelow(size)] = 1.0f;  // finite
  return row;
}

// Every parameter is off in about half of the problems.
Problem RandomProblem(int64_t size, RandomStream* random) {
  const auto pick = [&](std::initializer_list<double> of) {
    return of.begin()[random->NextBelow(of.size())];
  };
  const auto with_chance = [&](double p) { return random->NextUniform() < p; };
  Problem problem = {.logits = Row(static_cast<int>(random->NextBelow(kNumShapes)), size, random)};
  // Often a likely id.
  const auto some_id = [&] {
    if (with_chance(0.5)) return static_cast<int32_t>(random->NextBelow(size));
    return static_cast<int32_t>(std::max_element(problem.logits.begin(), problem.logits.end()) -
                                problem.logits.begin());
  };
  SamplingParams& params = problem.params;
  params.seed = random->NextU64();
  params.temperature = static_cast<float>(pick({0.0, 0.2, 0.6, 1.0, 1.0, 1.7}));
  params.top_k = static_cast<int32_t>(pick({0, 0, 0, 1, 20, 100, 512}));
  params.top_p = static_cast<float>(pick({1.0, 1.0, 0.3, 0.9, 0.95}));
  params.min_p = static_cast<float>(pick({0.0, 0.0, 0.0, 0.02, 0.5}));
  params.raw_log_probs = with_chance(0.5);
  params.ranks = with_chance(0.3);
  params.num_log_probs =
      with_chance(0.3) ? static_cast<int32_t>(std::min<int64_t>(size, pick({1, 3, 20}))) : 0;
  params.top_log_probs_mode = with_chance(0.5) ? LogProbsMode::kRaw : LogProbsMode::kProcessed;
  if (with_chance(0.3)) params.repetition_penalty = static_cast<float>(pick({0.7, 1.3}));
  if (with_chance(0.3)) params.frequency_penalty = static_cast<float>(pick({-1.0, 1.5}));
  if (with_chance(0.3)) params.presence_penalty = static_cast<float>(pick({-2.0, 2.0}));
  if (with_chance(0.3)) params.logit_bias = {{some_id(), -100.0f}, {some_id(), 6.0f}};
  if (with_chance(0.3)) params.bad_words_ids = {{some_id()}, {0, some_id()}};
  if (with_chance(0.2)) params.min_tokens = 100;
  params.stop_token_ids = {some_id()};
  if (with_chance(0.2)) params.allowed_token_ids = Ids{some_id(), some_id(), some_id(), 2};
  problem.prompt = {some_id(), some_id(), 2};
  problem.generated = {some_id(), some_id(), some_id(), 1, 0};
  return problem;
}

TEST(LogitRow, CandidatesGiveTheTokenOfTheWholeRow) {
  RandomStream random(61, "candidates");
  constexpr int kNumProblems = 800;  // of each size
  for (const int64_t size : {3, 17, 511, 512, 513, 700, 1500, 5000}) {
    std::vector<Problem> problems;
    for (int i = 0; i < kNumProblems; ++i) problems.push_back(RandomProblem(size, &random));
    const std::vector<Sampled> sampled = SampleFromCandidates(problems);
    int num_answered = 0;
    for (int i = 0; i < kNumProblems; ++i) {
      SCOPED_TRACE(Concat("V ", size, ", problem ", i));
      if (absl::IsOutOfRange(sampled[i].token.status())) continue;
      ++num_answered;
      ExpectSame(sampled[i], SampleWhole(problems[i]));
      if (HasFailure()) return;
    }
    // The others are mostly flat rows.
    EXPECT_GE(num_answered, size <= kTopCandidates ? kNumProblems : kNumProblems * 3 / 4);
  }
}

TEST(LogitRow, CandidatesShowThatARowIsNotFinite) {
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Problem problem;
      problem.logits.assign(2000, std::isinf(bad) && bad < 0 ? bad : 1.0f);
      problem.logits[1234] = bad;
      problem.params.temperature = temperature;
      problem.params.top_k = 5;
      ExpectSame(SampleFromCandidates(problem), SampleWhole(problem));
      EXPECT_ERROR(SampleFromCandidates(problem).token, kInternal, "not finite");
    }
  }
}

TEST(LogitRow, CandidatesShowThatNoTokenIsPossible) {
  Problem problem;
  problem.logits.assign(2000, 0.5f);
  problem.params.allowed_token_ids = Ids{7, 8};
  problem.params.bad_words_ids = {{7}, {8}};
  const Sampled actual = SampleFromCandidates(problem);
  EXPECT_ERROR(actual.token, kInvalidArgument, "allowed_token_ids, bad_words_ids");
  EXPECT_EQ(actual.token.status(), SampleWhole(problem).token.status());
}

// Logits that fall by 0.001 from id to id. The first 512 are the candidates.
std::vector<float> Falling() {
  std::vector<float> logits(2000);
  for (size_t v = 0; v < logits.size(); ++v) logits[v] = 12.0f - 0.001f * static_cast<float>(v);
  return logits;
}

// Their share of the weight: (1 - exp(-0.512)) / (1 - exp(-2)).
constexpr double kWeightOfCandidates = 0.46342;

// 20 likely ids, of which the first has most of the weight, and 1,980 of one logit.
std::vector<float> Steps() {
  std::vector<float> logits(2000, -2.0f);
  for (size_t v = 0; v < 20; ++v) logits[50 * v] = 5.0f - static_cast<float>(v) / 8;
  logits[0] = 12.0f;
  return logits;
}

// The greedy choice among the ids after the first `num`, which are impossible.
SamplingParams WithoutFirst(int32_t num) {
  SamplingParams params = {.temperature = 0.0f};
  for (int32_t id = 0; id < num; ++id) params.bad_words_ids.push_back({id});
  return params;
}

// The greedy choice where the first `num` ids are less likely by 100.
SamplingParams BiasedFirst(int32_t num) {
  std::vector<LogitBias::Entry> entries;
  for (int32_t id = 0; id < num; ++id) entries.push_back({id, -100.0f});
  return {.logit_bias = LogitBias(entries), .temperature = 0.0f};
}

// Parameters that the candidates answer, and some that need the rest of the row.
struct Border {
  const char* name;
  std::vector<float> logits;
  SamplingParams answered, needs_the_rest;
};

TEST(LogitRow, WhatDependsOnTheRestIsNotAnswered) {
  const Border borders[] = {
      {"top_k above the number of candidates", Falling(), {.top_k = 512}, {.top_k = 513}},
      {"top_k at ties", Steps(), {.top_k = 20}, {.top_k = 21}},
      {"top_p of more weight than the candidates have",
       Falling(),
       {.top_p = 0.46f},
       {.top_p = 0.47f}},
      // The largest logit of the rest is 0.512 below the first: exp(-0.512) = 0.5993.
      {"min_p of ids after the candidates", Falling(), {.min_p = 0.5995f}, {.min_p = 0.599f}},
      {"min_p at ties", Steps(), {.min_p = 1e-4f}, {.min_p = 1e-7f}},
      {"min_p of ids after the candidates, with top_p",
       Falling(),
       {.min_p = 0.5995f, .top_p = 0.3f},
       {.min_p = 0.599f, .top_p = 0.3f}},
      {"more alternatives than candidates",
       Falling(),
       {.top_k = 1, .num_log_probs = 512},
       {.top_k = 1, .num_log_probs = 513}},
      {"alternatives at ties",
       Steps(),
       {.top_k = 1, .num_log_probs = 20},
       {.top_k = 1, .num_log_probs = 21}},
      {"the rank of an unlikely token",
       Falling(),
       {.allowed_token_ids = Ids{511}, .ranks = true},
       {.allowed_token_ids = Ids{513}, .ranks = true}},
      {"all candidates forbidden", Falling(), WithoutFirst(511), WithoutFirst(512)},
      {"a greedy token that a bias makes less likely than others",
       Falling(),
       {.logit_bias = {{0, -0.51f}, {1, -100.0f}}, .temperature = 0.0f},
       BiasedFirst(512)},
  };
  for (const Border& border : borders) {
    SCOPED_TRACE(border.name);
    Problem problem = {.logits = border.logits, .params = border.answered};
    ASSERT_OK(SampleFromCandidates(problem).token);
    ExpectSame(SampleFromCandidates(problem), SampleWhole(problem));
    problem.params = border.needs_the_rest;
    EXPECT_ERROR(SampleFromCandidates(problem).token, kOutOfRange, "suffice");
  }
}

TEST(LogitRow, ADrawThatFallsIntoTheRestIsNotAnswered) {
  Problem problem = {.logits = Falling()};
  int num_answered = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    problem.params.seed = seed;
    const Sampled sampled = SampleFromCandidates(problem);
    ASSERT_EQ(sampled.token.ok(), UniformOfStep(seed, kStep) < kWeightOfCandidates);
    if (sampled.token.ok()) ExpectSame(sampled, SampleWhole(problem));
    num_answered += sampled.token.ok() ? 1 : 0;
  }
  EXPECT_GT(num_answered, 5);
  EXPECT_LT(num_answered, 35);
}

// 600 equal maxima: a candidate may not be the lowest of them.
TEST(LogitRow, AGreedyTokenAmongManyEqualsIsNotAnswered) {
  Problem problem;
  problem.logits.assign(2000, 0.0f);
  std::fill_n(problem.logits.begin() + 700, 600, 3.0f);
  for (const float temperature : {0.0f, 1.0f}) {
    problem.params.temperature = temperature;
    problem.params.bad_words_ids = {{0}};
    EXPECT_ERROR(SampleFromCandidates(problem).token, kOutOfRange, "suffice");
  }
}

}  // namespace
}  // namespace taopd::testing
