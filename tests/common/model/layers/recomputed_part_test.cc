// Recomputation changes what is kept, but no bit of a gradient, and the backward pass reports how
// far it has come.
#include <gtest/gtest.h>

#include <map>

#include "tests/common/model/tiny_models.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

std::vector<std::vector<int32_t>> Sequences() {
  RandomStream random(5);
  std::vector<std::vector<int32_t>> sequences;
  for (const int64_t length : {3, 40, 1, 17, 40})
    sequences.push_back(RandomTokens(length, 31, &random));
  return sequences;
}

// Returns the hidden states, and the gradients by their parameters' names, in float32 sums of two
// passes.
std::map<std::string, at::Tensor> Gradients(Decoder* decoder, const ForwardOptions& options) {
  std::map<std::string, at::Tensor> results;
  for (auto& [name, parameter] : decoder->Parameters()) {
    at::Tensor leaf = parameter;
    leaf.mutable_grad() = at::zeros(parameter.sizes(), at::kFloat);
  }
  for (int pass = 0; pass < 2; ++pass) {
    const at::Tensor hidden_TH =
        decoder->Forward(PackedBatch::FromSequences(Sequences(), at::kCPU), options);
    results["hidden"] = hidden_TH.detach();
    at::linear(hidden_TH, decoder->lm_head()).log_softmax(-1).select(1, 0).sum().backward();
  }
  for (const auto& [name, parameter] : decoder->Parameters()) {
    results[name] = parameter.grad().clone();
  }
  return results;
}

class RecomputeTest : public ::testing::TestWithParam<TinyKind> {};

TEST_P(RecomputeTest, GradientsAreTheSameBits) {
  const auto decoder = TinyDecoder(GetParam().architecture, GetParam().dtype, true);
  const ThreadsRestored threads(2);
  const auto expected = Gradients(decoder.get(), {});
  double sum = 0;
  for (const auto& [name, gradient] : expected) sum += MaxAbs(gradient);
  EXPECT_GT(sum, 0);
  for (const Recompute recompute : {Recompute::kAttention, Recompute::kFull}) {
    for (const auto& [name, gradient] : Gradients(decoder.get(), {.recompute = recompute})) {
      EXPECT_TRUE(at::equal(gradient, expected.at(name)))
          << name << " with recompute " << static_cast<int>(recompute);
    }
  }
}

TEST_P(RecomputeTest, LayersAreReportedWhenTheirGradientsAreComplete) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kAttention, Recompute::kFull}) {
    const auto decoder = TinyDecoder(GetParam().architecture, GetParam().dtype, true);
    const int64_t num_layers = decoder->config().num_hidden_layers;
    std::vector<int64_t> calls;
    std::map<std::string, at::Tensor> when_reported;
    ForwardOptions options = {.recompute = recompute};
    options.on_layer_backward = [&](int64_t layer) {
      calls.push_back(layer);
      for (const auto& [name, parameter] : decoder->Parameters()) {
        const bool is_of_layer =
            layer == num_layers ? name == "model.norm.weight" || name == "lm_head.weight"
                                : name.starts_with("model.layers." + std::to_string(layer) + ".");
        if (is_of_layer) when_reported[name] = parameter.grad().clone();
      }
    };
    const auto in_the_end = Gradients(decoder.get(), options);
    std::vector<int64_t> expected;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t layer = num_layers; layer >= 0; --layer) expected.push_back(layer);
    }
    EXPECT_EQ(calls, expected);
    for (const auto& [name, gradient] : in_the_end) {
      if (name == "hidden" || name == "model.embed_tokens.weight") continue;
      ASSERT_TRUE(when_reported.contains(name)) << name;
      EXPECT_TRUE(at::equal(when_reported[name], gradient)) << name;
    }
  }
}

// The inputs of the first layer then need no gradient, but its parameters do.
TEST_P(RecomputeTest, AFrozenEmbeddingLeavesTheOtherGradientsAlone) {
  const auto decoder = TinyDecoder(GetParam().architecture, GetParam().dtype, true);
  const auto expected = Gradients(decoder.get(), {});
  for (auto& [name, parameter] : decoder->Parameters()) {
    if (name == "model.embed_tokens.weight" || name == "model.layers.0.input_layernorm.weight") {
      at::Tensor leaf = parameter;
      leaf.set_requires_grad(false);
    }
  }
  for (const auto& [name, gradient] : Gradients(decoder.get(), {.recompute = Recompute::kFull})) {
    const bool is_frozen =
        name == "model.embed_tokens.weight" || name == "model.layers.0.input_layernorm.weight";
    if (is_frozen) {
      EXPECT_EQ(MaxAbs(gradient), 0) << name;
    } else {
      EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name;
    }
  }
}

TEST(Recompute, WithoutGradModeNothingIsRecorded) {
  const auto decoder = TinyDecoder("Qwen3ForCausalLM", "float32", true);
  const PackedBatch batch = PackedBatch::FromSequences(Sequences(), at::kCPU);
  const at::NoGradGuard no_grad;
  const ForwardOptions options = {.recompute = Recompute::kFull,
                                  .on_layer_backward = [](int64_t) { ADD_FAILURE(); }};
  const at::Tensor hidden_TH = decoder->Forward(batch, options);
  EXPECT_FALSE(hidden_TH.requires_grad());
  EXPECT_TRUE(at::equal(hidden_TH, decoder->Forward(batch)));
}

constexpr TinyKind kRecomputeKinds[] = {{"Qwen3ForCausalLM", "float32"},
                                        {"Qwen3ForCausalLM", "bfloat16"},
                                        {"LlamaForCausalLM", "float32"},
                                        {"Qwen2ForCausalLM", "bfloat16"},
                                        {"Qwen3MoeForCausalLM", "float32"}};
INSTANTIATE_TEST_SUITE_P(Models, RecomputeTest, ::testing::ValuesIn(kRecomputeKinds), NameOfKind);

}  // namespace
}  // namespace taopd::testing
