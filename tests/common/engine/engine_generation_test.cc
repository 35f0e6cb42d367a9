// Tests of generation: sampling, stops and log-probs. engine_rollouts_test.cc compares tokens with
// those of transformers, and engine_invariance_test.cc checks that the batch does not matter.
#include <cmath>

#include "common/engine/sampling/sampler.h"
#include "common/engine/torch_engine.h"
#include "tests/common/engine/markov_decoder.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// The tolerance between decoding through the cache and one pass over everything, in fp32 with
// logits near 10.
constexpr double kDecodeTolerance = 2e-4;

// Expects the log-probs of the tokens of a greedy request to equal those of one pass over prompt
// and response.
void ExpectLogProbs(Decoder* decoder, const InferenceRequest& request,
                    const GeneratedTokens& generated, double tolerance = kDecodeTolerance) {
  std::vector<int32_t> ids = request.token_ids;
  ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
  const at::Tensor log_probs_PV = at::log_softmax(LogitsOf(decoder, ids), 1);
  const double* log_probs = log_probs_PV.const_data_ptr<double>();
  ASSERT_EQ(generated.log_probs.size(), generated.ids.size());
  for (size_t i = 0; i < generated.ids.size(); ++i) {
    const int64_t row = static_cast<int64_t>(request.token_ids.size() + i) - 1;
    EXPECT_NEAR(generated.log_probs[i], log_probs[row * log_probs_PV.size(1) + generated.ids[i]],
                tolerance)
        << "token " << i;
  }
}

TEST(EngineGeneration, Bfloat16ModelsSampleFromFp32Logits) {
  ModelConfig config = SmallConfig();
  config.vocab_size = 5000;
  const auto decoder = MakeTiny(config, /*requires_grad=*/false, "bfloat16");
  const auto engine = MakeEngine(decoder);
  const InferenceRequest request = Generation({4000, 17, 3}, 1, 0.0f);
  const auto results = RunAll(engine.get(), {request});
  ASSERT_OK(results[0]);
  // Attention rounds in other places than Forward's, by two units of a hidden state near 4. If the
  // logits themselves were rounded, they would be twice as far off.
  ExpectLogProbs(decoder.get(), request, *results[0]->generated, 0.06);
}

// The trainer steps parameters in place on its own thread while the engine is idle.
TEST(EngineGeneration, FollowsParametersThatAreTrained) {
  const auto decoder = MakeTiny(SmallConfig(), /*requires_grad=*/true);
  const auto engine = MakeEngine(decoder);
  const InferenceRequest request = Generation(RandomIds(5, 1), 10, 0.0f);
  auto before = RunAll(engine.get(), {request});
  ASSERT_OK(before[0]);
  for (int step = 0; step < 3; ++step) {
    const std::vector<int32_t> ids = RandomIds(20, step);
    const at::Tensor hidden = decoder->Forward(PackedBatch::FromSequences({ids}, at::kCPU));
    const at::Tensor loss = at::mm(hidden, decoder->lm_head().t()).logsumexp(1).sum();
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, parameter] : decoder->Parameters()) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      parameter.sub_(parameter.grad(), 0.01);
      parameter.mutable_grad().zero_();
    }
  }
  auto after = RunAll(engine.get(), {request});
  ASSERT_OK(after[0]);
  EXPECT_NE(before[0]->generated->log_probs, after[0]->generated->log_probs);
  ExpectLogProbs(decoder.get(), request, *after[0]->generated);
}

// Weights that were NaN for a while (after a bad step that was rolled back) leave nothing in the KV
// cache.
TEST(EngineGeneration, RecoversFromNanWeights) {
  const auto decoder = MakeTiny();
  const auto engine = MakeEngine(decoder);
  const std::vector<InferenceRequest> requests = {Generation(RandomIds(3, 1), 6, 0.0f),
                                                  Generation(RandomIds(30, 2), 6, 0.0f)};
  const auto before = RunAll(engine.get(), requests);
  at::Tensor weight = decoder->Parameters().front().second;
  const at::Tensor saved = weight.clone();
  weight.fill_(std::nan(""));
  for (const auto& result : RunAll(engine.get(), {requests[1], requests[1]})) {
    EXPECT_ERROR(result, kInternal, "not finite");
  }
  weight.copy_(saved);
  const auto after = RunAll(engine.get(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(after[i]);
    EXPECT_EQ(after[i]->generated->log_probs, before[i]->generated->log_probs);
  }
}

// ---- On a chain that goes 1 -> 2 -> ... -> 15 -> 0 (the end) under greedy choice ----

class EngineChainTest : public ::testing::Test {
 protected:
  EngineChainTest() {
    for (int32_t id = 0; id < 16; ++id) {
      std::vector<float> row = decoder_->LogitsAfter(id);
      row[(id + 1) % 16] = 20.0f;
      decoder_->set_logits_after(id, row);
    }
    engine_ = MakeEngine(decoder_);
  }
  GeneratedTokens Generate(const InferenceRequest& request) {
    auto results = RunAll(engine_.get(), {request});
    EXPECT_OK(results[0]);
    return results[0].ok() ? *results[0]->generated : GeneratedTokens();
  }

  std::shared_ptr<MarkovDecoder> decoder_ = std::make_shared<MarkovDecoder>(16);
  std::unique_ptr<InferenceEngine> engine_;
};

TEST_F(EngineChainTest, StopsAtEosStopIdsAndLength) {
  InferenceRequest request = Generation({12}, 10, 0.0f);
  GeneratedTokens generated = Generate(request);
  EXPECT_THAT(generated.ids, ElementsAre(13, 14, 15, 0));
  EXPECT_EQ(generated.finish, FinishReason::kStop);

  request.sampling->min_tokens = 6;
  generated = Generate(request);
  ASSERT_GE(generated.ids.size(), 6u);
  EXPECT_NE(generated.ids[3], 0);

  request.sampling->min_tokens = 0;
  request.sampling->ignore_eos = true;
  generated = Generate(request);
  EXPECT_THAT(generated.ids, ElementsAre(13, 14, 15, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(generated.finish, FinishReason::kLength);

  request.sampling->stop_token_ids = {9, 2};
  generated = Generate(request);
  EXPECT_THAT(generated.ids, ElementsAre(13, 14, 15, 0, 1, 2));
  EXPECT_EQ(generated.finish, FinishReason::kStop);

  request.sampling->max_new_tokens = 1;
  generated = Generate(request);
  EXPECT_THAT(generated.ids, ElementsAre(13));
  EXPECT_EQ(generated.finish, FinishReason::kLength);

  request.sampling->stop_token_ids = {13};  // kStop takes precedence over kLength
  EXPECT_EQ(Generate(request).finish, FinishReason::kStop);
}

TEST_F(EngineChainTest, FillsTheModelLengthToTheLastToken) {
  InferenceRequest request = Generation(std::vector<int32_t>(10, 1), 54, 0.0f);
  request.sampling->ignore_eos = true;
  EXPECT_EQ(Generate(request).ids.size(), 54u);
  const auto call = decoder_->calls().back();
  EXPECT_EQ(call.past_lens[0], 62);  // the last token fed is the 63rd; the 64th is only sampled
}

TEST_F(EngineChainTest, StreamsTokensInOrderBeforeDone) {
  std::vector<std::pair<int32_t, float>> streamed;
  std::vector<int32_t> top_ids;
  std::vector<bool> last;
  InferenceRequest request = Generation({12}, 10, 0.0f);
  request.sampling->num_log_probs = 1;
  request.on_token = [&](const GeneratedTokens& so_far, bool is_last) {
    streamed.emplace_back(so_far.ids.back(), so_far.log_probs.back());
    top_ids.push_back(so_far.top_ids.back());  // those of the new token are included
    EXPECT_EQ(so_far.top_ids.size(), so_far.ids.size());
    last.push_back(is_last);
  };
  const GeneratedTokens generated = Generate(request);
  ASSERT_EQ(streamed.size(), generated.ids.size());
  for (size_t i = 0; i < streamed.size(); ++i) {
    EXPECT_EQ(streamed[i].first, generated.ids[i]);
    EXPECT_EQ(streamed[i].second, generated.log_probs[i]);
    EXPECT_EQ(top_ids[i], generated.top_ids[i]);
    EXPECT_EQ(last[i], i + 1 == streamed.size());
  }
}

TEST_F(EngineChainTest, ReportsAlternatives) {
  InferenceRequest request = Generation({3}, 2, 0.0f);
  request.sampling->num_log_probs = 3;
  const GeneratedTokens generated = Generate(request);
  ASSERT_EQ(generated.top_ids.size(), 6u);
  ASSERT_EQ(generated.top_log_probs.size(), 6u);
  EXPECT_EQ(generated.top_ids[0], 4);
  EXPECT_EQ(generated.top_ids[3], 5);
  EXPECT_EQ(generated.top_log_probs[0], generated.log_probs[0]);
  for (int i : {0, 1, 3, 4}) EXPECT_GE(generated.top_log_probs[i], generated.top_log_probs[i + 1]);
}

// Rollouts of one prompt, whose rows are sampled in chunks, are the sampler's draws.
TEST(EngineGeneration, RolloutsOfAPromptAreDrawnByTheirSeeds) {
  const auto decoder = std::make_shared<MarkovDecoder>(16, 64, 0.7);
  const auto engine = MakeEngine(decoder, {.head_workspace_bytes = 1 << 10});
  std::vector<InferenceRequest> requests;
  for (int i = 0; i < 400; ++i) {
    requests.push_back(Generation({5}, 2, 1.0f, i));
    requests.back().sampling->ignore_eos = true;
  }
  const auto results = RunAll(engine.get(), requests);
  Sampler sampler;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(results[i]);
    int32_t last = 5;
    for (int64_t step = 0; step < 2; ++step) {
      const std::vector<float> logits = decoder->LogitsAfter(last);
      last = sampler.Sample({logits}, *requests[i].sampling, nullptr, step)->id;
      EXPECT_EQ(results[i]->generated->ids[step], last) << "rollout " << i << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace taopd::testing
