// Tests of rollouts: greedy ones equal those of transformers, and log-probs equal those of the
// training pass.

#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

// Returns row i of a matrix of ids, up to the first -1.
std::vector<int32_t> RowOf(const at::Tensor& ids, int64_t i) {
  const int64_t* row = ids.const_data_ptr<int64_t>() + i * ids.size(1);
  return std::vector<int32_t>(row, std::find(row, row + ids.size(1), -1));
}

class GreedyGolden : public ::testing::TestWithParam<const char*> {};

// Each golden file has 200 prompts and is made by tests/common/model/golden/make_greedy.py.
TEST_P(GreedyGolden, IsTransformersTokenForToken) {
  UseOneThread();
  const std::string name = GetParam();
  const std::string golden_dir = SourcePath("tests/common/model/golden/" + name);
  const auto golden = ReadTensors(golden_dir + "/greedy.safetensors");
  ASSERT_OK_AND_ASSIGN(
      std::shared_ptr<Decoder> decoder,
      LoadDecoder(name == "stories260K" ? SourcePath("deploy/examples/stories260K") : golden_dir,
                  {"float32", "cpu", false}));
  const at::Tensor& continuations = golden.at("continuations");
  EngineOptions options;
  options.max_num_batched_tokens = 256;  // prompts are computed in chunks while others decode
  const auto engine = MakeEngine(decoder, options);
  std::vector<InferenceRequest> requests;
  for (int64_t i = 0; i < continuations.size(0); ++i) {
    requests.push_back(Generation(RowOf(golden.at("prompts"), i), continuations.size(1), 0.0f));
    requests.back().sampling->ignore_eos = true;
  }
  ASSERT_EQ(requests.size(), 200u);
  const auto results = RunAll(engine.get(), requests);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_OK(results[i]);
    EXPECT_EQ(results[i]->generated->ids, RowOf(continuations, static_cast<int64_t>(i))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GreedyGolden,
                         ::testing::Values("qwen3_tied", "llama_bias", "llama31", "qwen2_window",
                                           "qwen3_moe", "stories260K"),
                         [](const auto& info) { return std::string(info.param); });

class BehaviorLogProbs : public ::testing::TestWithParam<const char*> {};

// The ratio of policies in a loss is exp(live - behavior), which should be 1 at the first update.
TEST_P(BehaviorLogProbs, AreThoseOfTheTrainingPass) {
  constexpr int kRollouts = 500;
  constexpr double kLogProbTolerance = 1e-5;  // float32, logits below 10
  const std::shared_ptr<Decoder> decoder =
      TinyDecoder(GetParam(), "float32", /*requires_grad=*/true);
  const auto engine = MakeEngine(decoder);
  RandomStream random(5);
  std::vector<InferenceRequest> requests;
  for (int i = 0; i < kRollouts; ++i) {
    requests.push_back(Generation(RandomTokens(1 + i / 4 % 40, 31, &random), 1 + i % 24,
                                  i % 2 == 0 ? 1.0f : 0.7f, i));
    requests.back().sampling->top_p = i % 3 == 0 ? 0.9f : 1.0f;
  }
  const auto results = RunAll(engine.get(), requests);
  double largest = 0;
  for (int i = 0; i < kRollouts; ++i) {
    ASSERT_OK(results[i]);
    const GeneratedTokens& generated = *results[i]->generated;
    std::vector<int32_t> ids = requests[i].token_ids;
    const auto num_prompt = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
    const at::Tensor hidden_TH =
        decoder->Forward(PackedBatch::FromSequences({ids}, at::kCPU)).detach();
    const at::Tensor log_probs_TV =
        (at::mm(hidden_TH.to(at::kDouble), decoder->lm_head().detach().to(at::kDouble).t()) /
         requests[i].sampling->temperature)
            .log_softmax(1);
    for (size_t g = 0; g < generated.ids.size(); ++g) {
      const double expected =
          log_probs_TV[num_prompt + static_cast<int64_t>(g) - 1][generated.ids[g]].item<double>();
      largest = std::max(largest, std::abs(generated.log_probs[g] - expected));
    }
  }
  EXPECT_LE(largest, kLogProbTolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, BehaviorLogProbs,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace taopd::testing
