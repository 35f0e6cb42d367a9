// Training: packs against single sequences. paged_inference_test.cc compares them in generation.
#include "common/model/layers/attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

std::vector<std::vector<int32_t>> ManySequences(int64_t vocab_size) {
  RandomStream random(3);
  std::vector<std::vector<int32_t>> sequences;
  for (int64_t length : {1, 2, 3, 5, 8, 9, 31, 64, 65, 100, 200, 300, 2, 53, 53, 54, 7, 1, 250}) {
    sequences.push_back(RandomTokens(length, vocab_size, &random));
  }
  return sequences;
}

TEST(Packing, TrainingForwardIsThatOfSingleSequences) {
  const auto decoder = TinyDecoder("Qwen3ForCausalLM", "float32", /*requires_grad=*/true);
  const auto sequences = ManySequences(decoder->config().vocab_size);
  const at::Tensor together_TH =
      decoder->Forward(PackedBatch::FromSequences(sequences, at::kCPU)).detach();
  std::vector<at::Tensor> alone;
  for (const auto& sequence : sequences) {
    alone.push_back(decoder->Forward(PackedBatch::FromSequences({sequence}, at::kCPU)).detach());
  }
  EXPECT_LE(MaxAbs(together_TH - at::cat(alone)), 1e-5);
}

std::vector<at::Tensor> Gradients(const std::vector<std::vector<int32_t>>& sequences) {
  const auto decoder = TinyDecoder("LlamaForCausalLM", "float32", /*requires_grad=*/true);
  const at::Tensor hidden_TH = decoder->Forward(PackedBatch::FromSequences(sequences, at::kCPU));
  at::linear(hidden_TH, decoder->lm_head()).log_softmax(-1).select(1, 0).sum().backward();
  std::vector<at::Tensor> gradients = {hidden_TH.detach()};
  for (const auto& [name, parameter] : decoder->Parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

TEST(Determinism, ForwardAndBackwardTwiceGiveTheSameBits) {
  const auto sequences = ManySequences(31);
  const auto first = Gradients(sequences), second = Gradients(sequences);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
}

TEST(AttentionPlan, EqualLengthsNeedNoGatherWhenTraining) {
  const std::vector<std::vector<int32_t>> sequences(5, std::vector<int32_t>(13, 1));
  const AttentionPlan plan =
      MakeAttentionPlan(PackedBatch::FromSequences(sequences, at::kCPU), at::kCPU);
  EXPECT_TRUE(plan.padded_is_packed);
  EXPECT_EQ(plan.groups.size(), 1u);
}

TEST(AttentionPlan, PaddingIsAtMostAnEighthOfLongSequences) {
  std::vector<std::vector<int32_t>> sequences;
  for (int64_t length = 64; length < 3000; length += 7) {
    sequences.push_back(std::vector<int32_t>(length, 1));
  }
  const AttentionPlan plan =
      MakeAttentionPlan(PackedBatch::FromSequences(sequences, at::kCPU), at::kCPU);
  size_t s = 0;  // lengths grow, and so do those of the groups
  for (const auto& group : plan.groups) {
    for (int64_t i = 0; i < group.num_sequences; ++i, ++s) {
      const auto length = static_cast<int64_t>(sequences[s].size());
      EXPECT_GE(group.padded_len, length);
      EXPECT_LE(group.padded_len * 8, length * 9 + 8);
    }
  }
  EXPECT_EQ(s, sequences.size());
}

TEST(Packing, EmptySequencesAndEmptyBatches) {
  const auto decoder = TinyDecoder("Qwen3ForCausalLM");
  const c10::InferenceMode inference;
  EXPECT_EQ(decoder->Forward(PackedBatch::FromSequences({}, at::kCPU)).sizes(),
            at::IntArrayRef({0, 24}));
  const at::Tensor with_TH =
      decoder->Forward(PackedBatch::FromSequences({{}, {3, 4}, {}}, at::kCPU));
  const at::Tensor without_TH = decoder->Forward(PackedBatch::FromSequences({{3, 4}}, at::kCPU));
  EXPECT_TRUE(at::equal(with_TH, without_TH));
}

}  // namespace
}  // namespace taopd::testing
