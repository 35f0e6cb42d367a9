// Logits and gradients of tiny random models against transformers (golden/make_goldens.py), and a
// published greedy continuation of a trained model.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <nlohmann/json.hpp>

#include "tests/common/model/paged_steps.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

constexpr double kLogitTolerance =
    2e-5;  // float32 roundings of two layers; logits are of size 1 to 10

struct GoldenCase {
  std::string dir;
  std::map<std::string, at::Tensor> golden;
  PackedBatch batch;
};

GoldenCase ReadCase(const std::string& name) {
  UseOneThread();
  GoldenCase test_case;
  test_case.dir = SourcePath("tests/common/model/golden/" + name);
  test_case.golden = ReadTensors(test_case.dir + "/golden.safetensors");
  const at::Tensor& cu_seqlens = test_case.golden.at("cu_seqlens");
  const int64_t* data = cu_seqlens.const_data_ptr<int64_t>();
  test_case.batch = {test_case.golden.at("token_ids"), {data, data + cu_seqlens.numel()}, {}};
  return test_case;
}

class DecoderGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderGolden, LogitsOfThePackInFp32) {
  const GoldenCase test_case = ReadCase(GetParam());
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(test_case.dir, {"auto", "cpu", false}));
  EXPECT_EQ(decoder->dtype(), at::kFloat);
  const c10::InferenceMode inference;
  const at::Tensor logits_TV = at::linear(decoder->Forward(test_case.batch), decoder->lm_head());
  EXPECT_LE(MaxAbs(logits_TV - test_case.golden.at("logits")), kLogitTolerance);
}

TEST_P(DecoderGolden, LogitsInBf16AreAsCloseToFp32AsTransformersOwn) {
  const GoldenCase test_case = ReadCase(GetParam());
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(test_case.dir, {"bfloat16", "cpu", false}));
  const c10::InferenceMode inference;
  const at::Tensor logits_TV = at::linear(decoder->Forward(test_case.batch), decoder->lm_head());
  const at::Tensor& fp32_TV = test_case.golden.at("logits");
  const at::Tensor theirs_TV = test_case.golden.at("logits_bf16") - fp32_TV;
  const at::Tensor ours_TV = logits_TV.to(at::kFloat) - fp32_TV;
  // The two round in different places, so single errors differ, the largest of 1300 by up to a
  // factor of two. The ratio of their mean sizes is 1.00 on the average of these models, with a
  // standard deviation of 0.06 where attention multiplies in bfloat16; the limit is three of them.
  EXPECT_LE(MeanAbs(ours_TV), 1.2 * MeanAbs(theirs_TV));
  EXPECT_LE(MaxAbs(ours_TV), 2.5 * MaxAbs(theirs_TV));
  EXPECT_GT(MaxAbs(ours_TV), kLogitTolerance);  // it did compute in bfloat16
}

TEST_P(DecoderGolden, GradientsOfEveryParameter) {
  const GoldenCase test_case = ReadCase(GetParam());
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(test_case.dir, {"float32", "cpu", true}));
  const at::Tensor logits_TV = at::linear(decoder->Forward(test_case.batch), decoder->lm_head());
  EXPECT_LE(MaxAbs(logits_TV.detach() - test_case.golden.at("logits")), kLogitTolerance);
  (logits_TV * test_case.golden.at("loss_weights")).sum().backward();
  size_t num_gradients = 0;
  for (const auto& [name, value] : test_case.golden) num_gradients += name.starts_with("grad.");
  EXPECT_GT(num_gradients, 0u);
  EXPECT_EQ(decoder->Parameters().size(), num_gradients);
  for (const auto& [name, parameter] : decoder->Parameters()) {
    ASSERT_TRUE(test_case.golden.contains("grad." + name)) << name;
    const at::Tensor& expected = test_case.golden.at("grad." + name);
    if (!parameter.grad().defined()) {  // an expert to which no token went
      EXPECT_EQ(MaxAbs(expected), 0.0) << name;
      continue;
    }
    // Relative to the tensor, because there are sums of up to 50 rows of numbers of its size.
    EXPECT_LE(MaxAbs(parameter.grad() - expected), 1e-5 * (1.0 + MaxAbs(expected))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderGolden,
                         ::testing::Values("qwen3_tied", "qwen3_untied", "llama_plain",
                                           "llama_bias", "qwen2_tied", "qwen2_window",
                                           "qwen3_window", "qwen3_moe", "qwen3_moe_mixed",
                                           "llama31", "llama_linear", "llama_dynamic", "qwen2_yarn",
                                           "qwen3_yarn_mscale"),
                         [](const auto& info) { return std::string(info.param); });

// The continuation that llama2.c prints for its smallest model, token for token, through the cache.
TEST(Stories260K, GreedyContinuation) {
  UseOneThread();
  const auto golden = nlohmann::json::parse(
      ReadFile(SourcePath("tests/common/model/golden/stories260K/golden_greedy.json")));
  const auto expected = golden["ids"].get<std::vector<int32_t>>();
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(SourcePath("deploy/examples/stories260K"),
                                                       {"auto", "cpu", false}));
  const c10::InferenceMode inference;
  PagedSteps steps(decoder.get(), 8);
  std::vector<int32_t> ids = golden["start"].get<std::vector<int32_t>>();
  while (ids.size() < expected.size()) {
    const at::Tensor logits_1V = decoder->Logits(steps.Step({{0, {ids.back()}}}));
    ids.push_back(static_cast<int32_t>(logits_1V.argmax().item<int64_t>()));
  }
  EXPECT_EQ(ids, expected);
}

// verl's digit-completion model: the continuations of transformers, and their log-probs.
TEST(VerlArithLlama, GreedyContinuations) {
  const std::string model_dir = SharedData("models/verl_arith_llama");
  if (model_dir.empty()) GTEST_SKIP() << "shared data is absent";
  UseOneThread();
  const auto golden = nlohmann::json::parse(
      ReadFile(SourcePath("tests/common/model/golden/verl_arith_llama/golden_greedy.json")));
  // Ids must be equal: the best logit is always at least ten times this far from the second.
  constexpr double kLogProbTolerance = 2e-5;
  ASSERT_GT(golden["smallest_logit_gap"].get<double>(), 10 * kLogProbTolerance);
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(model_dir, {"float32", "cpu", false}));
  const c10::InferenceMode inference;
  ASSERT_EQ(golden["cases"].size(), 12u);
  for (const auto& test_case : golden["cases"]) {
    PagedSteps steps(decoder.get(), 2);
    auto pending = test_case["prompt_ids"].get<std::vector<int32_t>>();
    std::vector<int32_t> ids;
    std::string text;
    for (const double expected : test_case["logprobs"].get<std::vector<double>>()) {
      const at::Tensor logits_V = decoder->Logits(steps.Step({{0, pending}}))[-1];
      const auto id = static_cast<int32_t>(logits_V.argmax().item<int64_t>());
      EXPECT_NEAR(logits_V.log_softmax(0)[id].item<double>(), expected, kLogProbTolerance);
      ids.push_back(id);
      constexpr int32_t kNumSpecial = 4;
      text += id < kNumSpecial
                  ? "<" + std::to_string(id) + ">"
                  : golden["characters"].get<std::string>().substr(id - kNumSpecial, 1);
      pending = {id};
    }
    EXPECT_EQ(ids, test_case["ids"].get<std::vector<int32_t>>()) << test_case["prompt"];
    EXPECT_EQ(text, test_case["text"].get<std::string>());
  }
}

}  // namespace
}  // namespace taopd::testing
