// The teacher's head against a float64 log-softmax of the same float32 logits.
#include "kernels/torch/head/scoring_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/scoring_problem.h"

namespace taopd::testing {
namespace {

// With hidden = identity, lm_head^T is the logits: row n's logits are exactly column n.
struct Rows {
  at::Tensor hidden, lm_head;
};
Rows FromLogits(const at::Tensor& logits_NV) {
  return {at::eye(logits_NV.size(0)), logits_NV.t().contiguous()};
}

at::Tensor Random(at::IntArrayRef shape, double scale, uint64_t seed) {
  return RandomTensor(shape, seed) * scale;
}

// Checks the head as a tensor and packed.
void ExpectMatchesOracle(const at::Tensor& logits_NV, const at::Tensor& sampled,
                         const at::Tensor& candidates, const ScoringOptions& options,
                         const std::string& what) {
  const Rows rows = FromLogits(logits_NV);
  const PackedWeight packed({rows.lm_head});
  ExpectMatchesFloat64(ScoreRowsOfHead(rows.hidden, rows.lm_head, sampled, candidates, options),
                       logits_NV, sampled, candidates, options, what);
  ExpectMatchesFloat64(
      ScoreRowsOfHead(rows.hidden, HeadMatrix(packed), sampled, candidates, options), logits_NV,
      sampled, candidates, options, what + ", packed");
}

TEST(ScoringHead, MatchesFloat64ForAllSizesOfTopK) {
  for (int64_t vocab_size : {1, 7, 130, 2500}) {
    for (int64_t k : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{16}, int64_t{1024},
                      vocab_size - 1, vocab_size}) {
      if (k > vocab_size) continue;
      ScoringOptions options;
      options.top_k = static_cast<int32_t>(k);
      options.temperature = k % 2 == 0 ? 1.0 : 0.7;
      options.entropy = true;
      options.rank = true;
      options.dense = vocab_size < 200;
      ExpectMatchesOracle(Random({3, vocab_size}, 4, vocab_size + k), RandomIds({3}, vocab_size, k),
                          RandomIds({3, 4}, vocab_size, k + 1), options,
                          "V " + std::to_string(vocab_size) + ", k " + std::to_string(k));
    }
  }
}

TEST(ScoringHead, TiesGoToTheLowestId) {
  ScoringOptions options = {.rank = true};
  for (int32_t k : {1, 3, 8, 16, 31, 32, 33, 700}) {
    options.top_k = k;
    const at::Tensor few_values = Random({4, 700}, 1, k).round();
    ExpectMatchesOracle(few_values, RandomIds({4}, 700, k), {}, options, "rounded");
    ExpectMatchesOracle(at::zeros({1, 700}), RandomIds({1}, 700, k), {}, options, "all equal");
  }
}

TEST(ScoringHead, TailsAreExactDownTo1em30) {
  for (double log10_tail : {-6.0, -12.0, -20.0, -30.0, -80.0}) {
    at::Tensor logits = Random({2, 3000}, 1, 17);
    logits.sub_(logits.logsumexp(1, true)).add_(log10_tail * std::log(10.0));
    logits.select(1, 10).fill_(0);
    logits.select(1, 2000).fill_(-0.5);
    ExpectMatchesOracle(logits, {}, {}, {.top_k = 2}, "tail 1e" + std::to_string(log10_tail));
  }
}

TEST(ScoringHead, LargeAndNanLogits) {
  const Rows rows{at::ones({2, 1}), at::zeros({50, 1})};
  const ScoringOptions options = {.top_k = 4, .entropy = true};
  ExpectMatchesOracle(Random({2, 50}, 3000, 18), RandomIds({2}, 50, 1), {}, options, "large");
  // A row with a NaN is reported as such, with ids that may be used as indices.
  at::Tensor broken = rows.hidden.clone();
  broken[1][0] = std::nanf("");
  const ScoringOutput output = ScoreRowsOfHead(broken, rows.lm_head, {}, {}, options);
  EXPECT_NEAR(output.log_sum_exp_N[0].item<float>(), std::log(50.0), 1e-5);
  EXPECT_TRUE(std::isnan(output.log_sum_exp_N[1].item<float>()));
  EXPECT_TRUE(std::isnan(output.log_tail_N[1].item<float>()));
  EXPECT_TRUE(std::isnan(output.entropy_N[1].item<float>()));
  EXPECT_TRUE(at::isnan(output.log_probs_Nk[1]).all().item<bool>());
  EXPECT_TRUE((output.ids_Nk >= 0).logical_and(output.ids_Nk < 50).all().item<bool>());
}

// The result of a row is the same whatever else is in the call and however it is cut into chunks.
// The logits are exact here (identity), so the GEMM's order of summation does not matter.
TEST(ScoringHead, ARowDependsOnThatRowOnly) {
  const Rows rows = FromLogits(Random({9, 1000}, 3, 19));
  const at::Tensor sampled = RandomIds({9}, 1000, 20);
  ScoringOptions options = {.top_k = 12, .entropy = true};
  const ScoringOutput whole = ScoreRowsOfHead(rows.hidden, rows.lm_head, sampled, {}, options);
  for (int64_t workspace_bytes : {int64_t{1}, int64_t{4 * 4000}}) {
    options.workspace_bytes = workspace_bytes;
    const ScoringOutput chunked = ScoreRowsOfHead(rows.hidden, rows.lm_head, sampled, {}, options);
    EXPECT_TRUE(at::equal(chunked.ids_Nk, whole.ids_Nk));
    EXPECT_TRUE(at::equal(chunked.log_probs_Nk, whole.log_probs_Nk));
    EXPECT_TRUE(at::equal(chunked.log_tail_N, whole.log_tail_N));
    EXPECT_TRUE(at::equal(chunked.sampled_log_probs_N, whole.sampled_log_probs_N));
    EXPECT_TRUE(at::equal(chunked.entropy_N, whole.entropy_N));
  }
  const ScoringOutput one = ScoreRowsOfHead(rows.hidden.narrow(0, 4, 1), rows.lm_head,
                                            sampled.narrow(0, 4, 1), {}, options);
  EXPECT_TRUE(at::equal(one.log_probs_Nk[0], whole.log_probs_Nk[4]));
  EXPECT_TRUE(at::equal(one.log_tail_N[0], whole.log_tail_N[4]));
}

TEST(ScoringHead, Bfloat16InputsHaveFloat32Logits) {
  const at::Tensor hidden = Random({5, 64}, 1, 21).to(at::kBFloat16);
  const at::Tensor lm_head = Random({3001, 64}, 1, 22).to(at::kBFloat16);
  const ScoringOutput output = ScoreRowsOfHead(hidden, lm_head, {}, {}, {.top_k = 8});
  const at::Tensor exact =
      at::log_softmax(at::mm(hidden.to(at::kDouble), lm_head.to(at::kDouble).t()), 1);
  const auto [log_probs, ids] = exact.topk(8, 1);
  EXPECT_TRUE(at::equal(output.ids_Nk, ids.to(at::kInt)));
  EXPECT_LT((output.log_probs_Nk - log_probs).abs().max().item<double>(), 2e-5);
}

TEST(ScoringHead, WhatIsNotAskedForIsUndefined) {
  const Rows rows = FromLogits(Random({2, 20}, 1, 23));
  const ScoringOutput output = ScoreRowsOfHead(rows.hidden, rows.lm_head, {}, {}, {});
  EXPECT_FALSE(output.sampled_log_probs_N.defined());
  EXPECT_FALSE(output.sampled_ranks_N.defined());
  EXPECT_FALSE(output.entropy_N.defined());
  EXPECT_FALSE(output.candidate_log_probs_NM.defined());
  EXPECT_FALSE(output.candidate_log_tail_N.defined());
  EXPECT_FALSE(output.dense_log_probs_NV.defined());
  EXPECT_EQ(output.ids_Nk.sizes(), (std::vector<int64_t>{2, 0}));
  const ScoringOutput none = ScoreRowsOfHead(rows.hidden.narrow(0, 0, 0), rows.lm_head, {}, {}, {});
  EXPECT_EQ(none.log_tail_N.numel(), 0);
}

// Outside of the top-k and of no candidates means outside of the top-k.
TEST(ScoringHead, AnEmptyListOfCandidatesLeavesTheTailAsItIs) {
  const Rows rows = FromLogits(Random({3, 20}, 1, 25));
  const ScoringOutput output =
      ScoreRowsOfHead(rows.hidden, rows.lm_head, {}, at::empty({3, 0}, at::kInt), {.top_k = 4});
  EXPECT_EQ(output.candidate_log_probs_NM.sizes(), (std::vector<int64_t>{3, 0}));
  EXPECT_TRUE(at::equal(output.candidate_log_tail_N, output.log_tail_N));
}

void ExpectRefused(const Rows& rows, const at::Tensor& sampled, const at::Tensor& candidates,
                   const ScoringOptions& options, const std::string& part) {
  ExpectThrows(part,
               [&] { ScoreRowsOfHead(rows.hidden, rows.lm_head, sampled, candidates, options); });
}

TEST(ScoringHead, RefusesWrongInputsByName) {
  const Rows rows = FromLogits(Random({3, 20}, 1, 24));
  ScoringOptions options = {.top_k = 21};
  ExpectRefused(rows, {}, {}, options, "top_k is 21, must be in [0, 20]");
  options.top_k = -1;
  ExpectRefused(rows, {}, {}, options, "top_k is -1");
  options.top_k = 3;
  ExpectRefused(rows, at::tensor({0, 1}, at::kInt), {}, options, "sampled_ids has shape [2]");
  ExpectRefused(rows, at::tensor({0, 1, 20}, at::kInt), {}, options,
                "sampled_ids holds ids in [0, 20]");
  ExpectRefused(rows, {}, at::full({3, 2}, -1, at::kInt), options,
                "candidate_ids holds ids in [-1, -1]");
  ExpectRefused(rows, {}, at::zeros({3, 2}, at::kLong), options, "candidate_ids is Long");
  options.temperature = std::nan("");
  ExpectRefused(rows, {}, {}, options, "temperature is nan");
  ExpectRefused({rows.hidden, at::zeros({20, 4})}, {}, {}, {}, "lm_head has H = 4");
}

}  // namespace
}  // namespace taopd::testing
