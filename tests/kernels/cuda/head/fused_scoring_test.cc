// The teacher's head of kernels/cuda against the CPU's row kernel: on a GPU (tests/gpu), and the
// same source on the CPU through the emulated runtime.
#include "taopd/head/fused_scoring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/head/scoring_rows.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_head.h"
#include "tests/kernels/cuda/head_problem.h"

namespace taopd::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// float32 products and exponentials in another order than the CPU's, relative to at least 1.
constexpr double kTolerance = 2e-5;

struct Case {
  HeadMatrices matrices;
  int32_t top_k = 0;
  double temperature = 1;
  std::vector<int32_t> sampled_ids, candidate_ids;
  int32_t num_candidates = 0;
};

struct Results {
  std::vector<int32_t> ids, ranks;
  std::vector<float> log_probs, log_tail, log_mass, log_sum_exp, sampled, entropy, candidates,
      candidate_tail;
  int32_t errors = 0;
  std::string problem;
};

FusedScoringProblem ProblemOf(const Case& c) {
  FusedScoringProblem problem;
  problem.dtype = c.matrices.dtype;
  problem.num_rows = c.matrices.num_rows;
  problem.hidden_size = c.matrices.hidden_size;
  problem.vocab_size = c.matrices.vocab_size;
  problem.top_k = c.top_k;
  problem.temperature = c.temperature;
  problem.num_candidates = c.num_candidates;
  return problem;
}

Results RunOnDevice(const Case& c, int64_t workspace_bytes = 64 << 20) {
  const HeadMatrices& m = c.matrices;
  DeviceHead head(m, workspace_bytes);
  DeviceArray<int32_t> sampled_ids(c.sampled_ids), candidate_ids(c.candidate_ids);
  const std::vector<float> per_row(m.num_rows);
  DeviceArray<int32_t> ids(std::vector<int32_t>(m.num_rows * c.top_k));
  DeviceArray<float> log_probs(std::vector<float>(m.num_rows * c.top_k));
  DeviceArray<float> log_tail(per_row), log_mass(per_row), log_sum_exp(per_row), sampled(per_row),
      entropy(per_row), candidates(std::vector<float>(m.num_rows * c.num_candidates)),
      candidate_tail(per_row);
  DeviceArray<int32_t> ranks(std::vector<int32_t>(m.num_rows)), errors(std::vector<int32_t>(1));
  FusedScoringProblem problem = ProblemOf(c);
  static_cast<HeadInputs&>(problem) = head.Inputs(c.temperature);
  problem.sampled_ids_N = sampled_ids.OrNull();
  problem.candidate_ids_NM = candidate_ids.OrNull();
  FusedScoringResult result = {.ids_Nk = ids.data(),
                               .log_probs_Nk = log_probs.data(),
                               .log_tail_N = log_tail.data(),
                               .log_support_mass_N = log_mass.data(),
                               .log_sum_exp_N = log_sum_exp.data(),
                               .sampled_log_probs_N = sampled.data()};
  if (!c.sampled_ids.empty()) result.sampled_ranks_N = ranks.data();
  result.entropy_N = entropy.data();
  result.candidate_log_probs_NM = candidates.data();
  if (c.num_candidates > 0) result.candidate_log_tail_N = candidate_tail.data();
  result.errors = errors.data();
  Results results = {.problem = FusedScoring(problem, result, head.Context())};
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  results.ids = ids.Values();
  results.log_probs = log_probs.Values();
  results.log_tail = log_tail.Values();
  results.log_mass = log_mass.Values();
  results.log_sum_exp = log_sum_exp.Values();
  results.sampled = sampled.Values();
  results.ranks = ranks.Values();
  results.entropy = entropy.Values();
  results.candidates = candidates.Values();
  results.candidate_tail = candidate_tail.Values();
  results.errors = errors.Values()[0];
  return results;
}

Results Expected(const Case& c) {
  const HeadMatrices& m = c.matrices;
  Results expected;
  expected.ids.resize(m.num_rows * c.top_k);
  expected.log_probs.resize(m.num_rows * c.top_k);
  expected.candidates.resize(m.num_rows * c.num_candidates);
  cpu::ScoringRowScratch scratch;
  for (int64_t n = 0; n < m.num_rows; ++n) {
    std::vector<float> row = m.Logits(n);
    cpu::ScoringRowRequest request = {.top_k = c.top_k,
                                      .temperature = c.temperature,
                                      .entropy = true,
                                      .rank = !c.sampled_ids.empty()};
    if (!c.sampled_ids.empty()) request.sampled_id = &c.sampled_ids[n];
    request.candidate_ids = c.candidate_ids.data() + n * c.num_candidates;
    request.num_candidates = c.num_candidates;
    cpu::ScoringRowResult result = {
        .ids = expected.ids.data() + n * c.top_k,
        .log_probs = expected.log_probs.data() + n * c.top_k,
        .candidate_log_probs = expected.candidates.data() + n * c.num_candidates};
    cpu::ScoringRow(request, row.data(), m.vocab_size, &scratch, &result);
    expected.log_tail.push_back(result.log_tail);
    expected.log_mass.push_back(result.log_support_mass);
    expected.log_sum_exp.push_back(result.log_sum_exp);
    expected.sampled.push_back(result.sampled_log_prob);
    expected.ranks.push_back(result.sampled_rank);
    expected.entropy.push_back(result.entropy);
    expected.candidate_tail.push_back(c.num_candidates > 0 ? result.candidate_log_tail : 0.0f);
  }
  return expected;
}

void ExpectMatchesTheCpu(const Case& c, const std::string& what,
                         int64_t workspace_bytes = 64 << 20) {
  const Results actual = RunOnDevice(c, workspace_bytes);
  const Results expected = Expected(c);
  ASSERT_EQ(actual.problem, "") << what;
  EXPECT_EQ(actual.errors, 0) << what;
  EXPECT_EQ(actual.ids, expected.ids) << what;
  ExpectNear(actual.log_probs, expected.log_probs, kTolerance, what + ": log probs");
  ExpectNear(actual.log_tail, expected.log_tail, kTolerance, what + ": log tail");
  ExpectNear(actual.log_mass, expected.log_mass, kTolerance, what + ": log mass");
  ExpectNear(actual.log_sum_exp, expected.log_sum_exp, kTolerance, what + ": log sum exp");
  ExpectNear(actual.entropy, expected.entropy, kTolerance, what + ": entropy");
  ExpectNear(actual.candidates, expected.candidates, kTolerance, what + ": candidates");
  ExpectNear(actual.candidate_tail, expected.candidate_tail, kTolerance, what + ": candidate tail");
  if (c.sampled_ids.empty()) return;
  ExpectNear(actual.sampled, expected.sampled, kTolerance, what + ": sampled");
  EXPECT_EQ(actual.ranks, expected.ranks) << what;
}

// Sums of a few products of small numbers are exact in float32 in any order, so ids and ranks must
// agree exactly, and there are ties.
Case MakeCase(DataType dtype, int64_t num_rows, int64_t vocab_size, int32_t k, int levels,
              uint64_t seed) {
  std::mt19937_64 random(seed);
  Case c = {.matrices = RandomMatrices(dtype, num_rows, 3, vocab_size, seed)};
  for (std::vector<float>* matrix : {&c.matrices.hidden_NH, &c.matrices.lm_head_VH}) {
    for (float& value : *matrix) {
      value = (static_cast<float>(random() % levels) - static_cast<float>(levels / 2)) / 16.0f;
    }
  }
  c.matrices.Round();
  c.top_k = k;
  for (int64_t n = 0; n < num_rows; ++n) {
    c.sampled_ids.push_back(static_cast<int32_t>(random() % vocab_size));
  }
  c.num_candidates = 3;
  for (int64_t i = 0; i < num_rows * 3; ++i) {
    c.candidate_ids.push_back(static_cast<int32_t>(random() % vocab_size));
  }
  return c;
}

using FusedScoringTest = CudaTest;

TEST_F(FusedScoringTest, MatchesTheCpuAtAllSizes) {
  uint64_t seed = 0;
  for (int64_t vocab_size : {1, 2, 127, 128, 129, 2047, 20011}) {
    for (int32_t k : {0, 1, 2, 16, 127, 128, 1024}) {
      if (k > vocab_size) continue;
      for (int levels : {1, 3, 257}) {  // all equal, many ties, few ties
        ++seed;
        Case c = MakeCase(seed % 2 ? DataType::kFloat32 : DataType::kBFloat16, 2, vocab_size, k,
                          levels, seed);
        c.temperature = seed % 3 ? 1.0 : 0.7;
        ExpectMatchesTheCpu(c, "V " + std::to_string(vocab_size) + ", k " + std::to_string(k) +
                                   ", levels " + std::to_string(levels));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Steep logits: the tail is far below the top-k, and the tiles' maxima are far apart.
TEST_F(FusedScoringTest, TailsOfAnySize) {
  Case c = MakeCase(DataType::kFloat32, 3, 3001, 5, 3, 7);
  for (int64_t v = 0; v < 3001; ++v) {
    c.matrices.lm_head_VH[v * 3] = static_cast<float>((v * 37) % 3001) / 8.0f;
    c.matrices.lm_head_VH[v * 3 + 1] = c.matrices.lm_head_VH[v * 3 + 2] = 0;
  }
  for (int64_t n = 0; n < 3; ++n)
    c.matrices.hidden_NH[n * 3] = n == 0 ? 1.0f : n == 1 ? -8.0f : 64.0f;
  ExpectMatchesTheCpu(c, "steep");
}

TEST_F(FusedScoringTest, NanCountsAsTheSmallestLogit) {
  Case c = MakeCase(DataType::kFloat32, 2, 700, 16, 257, 8);
  for (int64_t v = 100; v < 400; ++v) c.matrices.lm_head_VH[v * 3] = kNan;
  const Results results = RunOnDevice(c);
  EXPECT_EQ(results.ids, Expected(c).ids);
  EXPECT_TRUE(std::isnan(results.log_sum_exp[0]));
  c.top_k = 500;  // more than there are numbers
  EXPECT_EQ(RunOnDevice(c).ids, Expected(c).ids);
}

TEST_F(FusedScoringTest, ChunksDoNotChangeTheResultAndCallsRepeatBitForBit) {
  const Case c = MakeCase(DataType::kBFloat16, 7, 1500, 20, 257, 9);
  const int64_t row = ScoringBytesPerRow(ProblemOf(c));
  for (int64_t rows : {1, 3}) {
    ExpectMatchesTheCpu(c, "rows " + std::to_string(rows), ScoringFixedBytes() + rows * row);
  }
  const Results once = RunOnDevice(c);
  const Results again = RunOnDevice(c);
  EXPECT_EQ(once.log_probs, again.log_probs);
  EXPECT_EQ(once.log_tail, again.log_tail);
  EXPECT_EQ(once.entropy, again.entropy);
  EXPECT_NE(RunOnDevice(c, ScoringFixedBytes() + row - 1).problem.find("one row takes"),
            std::string::npos);
}

TEST_F(FusedScoringTest, NothingAskedForButTheTopK) {
  Case c = MakeCase(DataType::kFloat32, 2, 300, 4, 257, 10);
  c.sampled_ids.clear();
  c.candidate_ids.clear();
  c.num_candidates = 0;
  ExpectMatchesTheCpu(c, "top-k only");
}

TEST_F(FusedScoringTest, WrongIdsAreFlaggedAndWrongArgumentsRefused) {
  const Case good = MakeCase(DataType::kFloat32, 2, 300, 4, 257, 11);
  for (int32_t id : {-1, 300, std::numeric_limits<int32_t>::max()}) {
    Case c = good;
    c.sampled_ids[1] = id;
    EXPECT_EQ(RunOnDevice(c).errors, kScoringSampledIdOutOfRange);
    c = good;
    c.candidate_ids[4] = id;
    EXPECT_EQ(RunOnDevice(c).errors, kScoringCandidateIdOutOfRange);
  }
  Case c = good;
  c.top_k = 301;
  EXPECT_EQ(RunOnDevice(c).problem, "top_k is 301, must be in [0, 300]");
  c = good;
  c.temperature = 0;
  EXPECT_EQ(RunOnDevice(c).problem, "temperature is 0, must be positive");
}

}  // namespace
}  // namespace taopd::testing
