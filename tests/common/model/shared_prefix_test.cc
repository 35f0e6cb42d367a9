// A prefix that several sequences share is computed once: the same rows, bit for bit, as with one
// copy for each, before and after inference has packed the weights, and the same gradients.
#include <gtest/gtest.h>

#include <map>

#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

constexpr int64_t kPrefix = 35, kFirst = 30, kSecond = 12;

std::vector<int32_t> Joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Returns the rows after the prefix, and the gradients of their sum of squares by the parameters'
// names.
std::map<std::string, at::Tensor> Compute(Decoder* decoder, bool shared) {
  RandomStream random(1);
  const auto prefix = RandomTokens(kPrefix, 31, &random), first = RandomTokens(kFirst, 31, &random),
             second = RandomTokens(kSecond, 31, &random);
  PackedBatch batch;
  if (shared) {
    batch = PackedBatch::FromSequences({prefix, first, second}, at::kCPU);
    batch.parents = {-1, 0, 0};
  } else {
    batch = PackedBatch::FromSequences({Joined(prefix, first), Joined(prefix, second)}, at::kCPU);
  }
  const at::Tensor hidden_TH = decoder->Forward(batch);
  const at::Tensor rows_NH =
      at::cat({hidden_TH.narrow(0, kPrefix, kFirst),
               hidden_TH.narrow(0, kPrefix + kFirst + (shared ? 0 : kPrefix), kSecond)});
  rows_NH.square().sum().backward();
  std::map<std::string, at::Tensor> results = {{"rows", rows_NH.detach()}};
  for (const auto& [name, parameter] : decoder->Parameters()) {
    if (!parameter.grad().defined()) continue;  // an expert that no token chose
    results[name] = parameter.grad().clone();
    at::Tensor leaf = parameter;
    leaf.mutable_grad() = at::Tensor();
  }
  return results;
}

class SharedPrefixTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedPrefixTest, IsAsGoodAsCopies) {
  UseOneThread();
  const auto decoder = TinyDecoder(GetParam(), "float32", true);
  ASSERT_TRUE(decoder->SharesPrefixes());
  const auto copies = Compute(decoder.get(), false), shared = Compute(decoder.get(), true);
  ASSERT_EQ(copies.size(), shared.size());
  EXPECT_TRUE(at::equal(shared.at("rows"), copies.at("rows")));
  for (const auto& [name, expected] : copies) {
    // Sums of a hundred rows in another order.
    EXPECT_LE((shared.at(name) - expected).abs().max().item<double>(),
              1e-5 * expected.abs().max().item<double>() + 1e-9)
        << name;
  }
  {
    const c10::InferenceMode inference;
    decoder->PrepareInference();
  }
  EXPECT_TRUE(at::equal(Compute(decoder.get(), true).at("rows"), copies.at("rows")));
}

INSTANTIATE_TEST_SUITE_P(Architectures, SharedPrefixTest,
                         ::testing::Values("LlamaForCausalLM", "Qwen2ForCausalLM",
                                           "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"));

}  // namespace
}  // namespace taopd::testing
