// Random ids, and the comparison of the teacher's head with a float64 log-softmax of the same
// float32 logits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>

#include "kernels/torch/head/scoring_head.h"
#include "tests/kernels/scoring_oracle.h"

namespace taopd::testing {

// The required accuracy of log-probs, and of log tails down to 1e-30, against float64.
inline constexpr double kLogProbTolerance = 1e-5;
inline constexpr double kLogTailTolerance = 1e-4;

inline at::Tensor RandomIds(at::IntArrayRef shape, int64_t vocab_size, uint64_t seed) {
  return at::randint(0, vocab_size, shape, at::detail::createCPUGenerator(seed),
                     at::TensorOptions().dtype(at::kInt));
}

// Checks all outputs of every row.
inline void ExpectMatchesFloat64(const ScoringOutput& output, const at::Tensor& logits_NV,
                                 const at::Tensor& sampled, const at::Tensor& candidates,
                                 const ScoringOptions& options, const std::string& what) {
  const int64_t vocab_size = logits_NV.size(1);
  const int64_t num_candidates = candidates.defined() ? candidates.size(1) : 0;
  for (int64_t n = 0; n < logits_NV.size(0); ++n) {
    const std::string where = what + ", row " + std::to_string(n);
    const at::Tensor ids = num_candidates > 0 ? candidates[n] : at::empty({0}, at::kInt);
    const std::span candidate_ids(ids.const_data_ptr<int32_t>(), num_candidates);
    const float* logits = logits_NV.const_data_ptr<float>() + n * vocab_size;
    const ScoredRow expected =
        ScoreRow(std::span(logits, vocab_size), options.temperature, options.top_k, candidate_ids);
    const auto expect = [&](const at::Tensor& actual, double number) {
      EXPECT_NEAR(actual.item<float>(), number, kLogProbTolerance * (1 + std::abs(number)))
          << where;
    };
    const auto expect_log = [&](const at::Tensor& actual, double number, const char* name) {
      if (std::isinf(number)) {
        EXPECT_EQ(actual.item<float>(), number) << where << ": " << name;
      } else {
        EXPECT_NEAR(actual.item<float>(), number, kLogTailTolerance) << where << ": " << name;
      }
    };
    expect(output.log_sum_exp_N[n], expected.log_sum_exp);
    for (int32_t j = 0; j < options.top_k; ++j) {
      const int32_t id = expected.order[j];
      ASSERT_EQ(output.ids_Nk[n][j].item<int32_t>(), id) << where << ", place " << j;
      expect(output.log_probs_Nk[n][j], expected.log_probs[id]);
    }
    expect_log(output.log_tail_N[n], expected.log_tail, "log tail");
    expect_log(output.log_support_mass_N[n], expected.log_support_mass, "log support mass");
    if (sampled.defined()) {
      const int32_t id = sampled[n].item<int32_t>();
      expect(output.sampled_log_probs_N[n], expected.log_probs[id]);
      if (options.rank) {
        EXPECT_EQ(output.sampled_ranks_N[n].item<int32_t>(), expected.RankOf(id)) << where;
      }
    }
    if (options.entropy) expect(output.entropy_N[n], expected.entropy);
    for (int64_t j = 0; j < num_candidates; ++j) {
      expect(output.candidate_log_probs_NM[n][j], expected.log_probs[candidate_ids[j]]);
    }
    if (num_candidates > 0) {
      expect_log(output.candidate_log_tail_N[n], expected.candidate_log_tail, "candidate log tail");
    }
    for (int64_t v = 0; options.dense && v < vocab_size; ++v) {
      expect(output.dense_log_probs_NV[n][v], expected.log_probs[v]);
    }
  }
}

}  // namespace taopd::testing
