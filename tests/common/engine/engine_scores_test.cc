// Compares scores with float64 over the same hidden states. engine_invariance_test.cc checks that
// they do not depend on the batch.
#include <limits>
#include <span>

#include "tests/common/engine/markov_decoder.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/same_scores.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/kernels/scoring_oracle.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// The tolerance between fp32 and float64 logits and sums: a few units in the last place of numbers
// near 10.
constexpr double kLogProbTolerance = 1e-5;
// A tail can be small compared with the normalizer, so its relative error is larger.
constexpr double kTailTolerance = 1e-4;

void ExpectSizes(const ScoreRows& rows, const ScoreParams& params, int64_t num_rows,
                 int64_t vocab_size) {
  const int32_t k = params.top_k;
  const int32_t m = params.num_candidates;
  ASSERT_EQ(rows.num_rows, num_rows);
  ASSERT_EQ(rows.top_k, k);
  ASSERT_EQ(rows.ids.size(), static_cast<size_t>(num_rows * k));
  ASSERT_EQ(rows.log_probs.size(), static_cast<size_t>(num_rows * k));
  ASSERT_EQ(rows.log_tail.size(), static_cast<size_t>(num_rows));
  ASSERT_EQ(rows.sampled_log_probs.size(), static_cast<size_t>(num_rows));
  ASSERT_EQ(rows.sampled_ranks.size(), static_cast<size_t>(params.rank ? num_rows : 0));
  ASSERT_EQ(rows.entropy.size(), static_cast<size_t>(params.entropy ? num_rows : 0));
  ASSERT_EQ(rows.candidate_log_probs.size(), static_cast<size_t>(num_rows * m));
  ASSERT_EQ(rows.candidate_log_tail.size(), static_cast<size_t>(m > 0 ? num_rows : 0));
  ASSERT_EQ(rows.dense_log_probs.size(),
            static_cast<size_t>(params.dense ? num_rows * vocab_size : 0));
  ASSERT_EQ(rows.log_support_mass.size(), static_cast<size_t>(params.support_stats ? num_rows : 0));
  ASSERT_EQ(rows.log_sum_exp.size(), static_cast<size_t>(params.support_stats ? num_rows : 0));
}

void ExpectScores(const ScoreRows& rows, const InferenceRequest& request,
                  const at::Tensor& logits_PV) {
  const ScoreParams& params = *request.score;
  const int64_t num_rows = static_cast<int64_t>(request.token_ids.size()) - params.start;
  const int64_t vocab_size = logits_PV.size(1);
  const int32_t k = params.top_k;
  const int32_t m = params.num_candidates;
  ASSERT_NO_FATAL_FAILURE(ExpectSizes(rows, params, num_rows, vocab_size));

  for (int64_t r = 0; r < num_rows; ++r) {
    SCOPED_TRACE(Concat("row ", r));
    const std::span candidates(params.candidate_ids.data() + r * m, m);
    const double* logits = logits_PV.const_data_ptr<double>() + (params.start + r - 1) * vocab_size;
    const ScoredRow expected =
        ScoreRow(std::span(logits, vocab_size), params.temperature, k, candidates);
    for (int32_t j = 0; j < k; ++j) {
      const int32_t id = expected.order[j];
      EXPECT_EQ(rows.ids[r * k + j], id);
      EXPECT_NEAR(rows.log_probs[r * k + j], expected.log_probs[id], kLogProbTolerance);
    }
    EXPECT_NEAR(rows.log_tail[r], expected.log_tail, kTailTolerance);
    const int32_t sampled = request.token_ids[params.start + r];
    EXPECT_NEAR(rows.sampled_log_probs[r], expected.log_probs[sampled], kLogProbTolerance);
    if (params.rank) {
      EXPECT_EQ(rows.sampled_ranks[r], expected.RankOf(sampled));
    }
    if (params.entropy) {
      EXPECT_NEAR(rows.entropy[r], expected.entropy, kTailTolerance);
    }
    for (int32_t j = 0; j < m; ++j) {
      EXPECT_NEAR(rows.candidate_log_probs[r * m + j], expected.log_probs[candidates[j]],
                  kLogProbTolerance);
    }
    if (m > 0) {
      EXPECT_NEAR(rows.candidate_log_tail[r], expected.candidate_log_tail, kTailTolerance);
    }
    for (int64_t v = 0; params.dense && v < vocab_size; ++v) {
      EXPECT_NEAR(rows.dense_log_probs[r * vocab_size + v], expected.log_probs[v],
                  kLogProbTolerance);
    }
    if (params.support_stats) {
      EXPECT_NEAR(rows.log_sum_exp[r], expected.log_sum_exp, kLogProbTolerance);
      // An empty support has no mass: log 0.
      if (k == 0) {
        EXPECT_EQ(rows.log_support_mass[r], -std::numeric_limits<float>::infinity());
      } else {
        EXPECT_NEAR(rows.log_support_mass[r], expected.log_support_mass, kLogProbTolerance);
      }
    }
  }
}

std::vector<InferenceRequest> VariedRequests() {
  std::vector<InferenceRequest> requests;
  for (int i = 0; i < 12; ++i) {
    const int64_t length = 2 + (i * 7) % 40;
    const int64_t start = i % 3 == 0 ? 1 : 1 + (length - 2) / 2;
    InferenceRequest request = Scoring(RandomIds(length, 100 + i), i % 5 == 4 ? 0 : 1 + i, start);
    request.score->temperature = i % 4 == 3 ? 1.7f : 1.0f;
    request.score->entropy = i % 2 == 0;
    request.score->rank = i % 3 != 1;
    request.score->support_stats = i % 4 < 2;
    request.score->dense = i % 4 == 1;
    if (i % 3 == 2) {
      request.score->num_candidates = 2;
      request.score->candidate_ids = RandomIds(2 * (length - start), 200 + i);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

class EngineScoresTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Architectures, EngineScoresTest,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM"));

TEST_P(EngineScoresTest, EqualFloat64LogSoftmax) {
  const auto decoder = MakeTiny(SmallConfig(GetParam()));
  const auto engine = MakeEngine(decoder);
  const std::vector<InferenceRequest> requests = VariedRequests();
  const auto results = RunAll(engine.get(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(Concat("request ", i));
    ASSERT_OK(results[i]);
    EXPECT_FALSE(results[i]->generated.has_value());
    ExpectScores(*results[i]->score, requests[i], LogitsOf(decoder.get(), requests[i].token_ids));
  }
}

// A head workspace of a few rows changes only the rounding.
TEST(EngineScores, AreRightInSmallChunks) {
  const auto decoder = MakeTiny();
  const auto engine =
      MakeEngine(decoder, {.max_num_batched_tokens = 8, .head_workspace_bytes = 1000});
  const InferenceRequest request = Scoring(RandomIds(50, 1), 7);
  const auto results = RunAll(engine.get(), {request});
  ASSERT_OK(results[0]);
  ExpectScores(*results[0]->score, request, LogitsOf(decoder.get(), request.token_ids));
}

TEST(EngineScores, WholeVocabularyLeavesNoTail) {
  const auto decoder = std::make_shared<MarkovDecoder>(16);
  const auto engine = MakeEngine(decoder);
  EXPECT_EQ(engine->limits().max_logprobs, 16);  // there are no more ids
  const auto results = RunAll(engine.get(), {Scoring({1, 2}, 16)});
  ASSERT_OK(results[0]);
  EXPECT_EQ(results[0]->score->log_tail[0], -std::numeric_limits<float>::infinity());
}

TEST(EngineScores, ScoreAndGenerationTakeOnePrefill) {
  const auto decoder = std::make_shared<MarkovDecoder>(16);
  const auto engine = MakeEngine(decoder);
  InferenceRequest both = Generation({3, 1, 4, 1, 5}, 1, 0.0f);
  both.score = Scoring({}, 4, 2).score;
  const auto results = RunAll(engine.get(), {both});
  ASSERT_OK(results[0]);
  EXPECT_EQ(decoder->calls().size(), 1u);
  EXPECT_EQ(results[0]->generated->ids.size(), 1u);
  const auto apart =
      RunAll(engine.get(), {Scoring({3, 1, 4, 1, 5}, 4, 2), Generation({3, 1, 4, 1, 5}, 1, 0.0f)});
  ExpectSameScores(*results[0]->score, *apart[0]->score, "together");
  EXPECT_EQ(results[0]->generated->ids, apart[1]->generated->ids);
}

}  // namespace
}  // namespace taopd::testing
