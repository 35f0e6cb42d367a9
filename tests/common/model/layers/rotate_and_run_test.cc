// PagedAttentionLayers::RotateAndRun compared with its two parts.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "common/model/layers/paged_attention.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

// Two of the three sequences, one of which decodes, continue after 3 tokens that were never
// written: their keys are zeros.
TEST(RotateAndRun, IsNormAndRotationAndThenTheAttention) {
  const c10::InferenceMode inference;
  const ModelConfig config = TinyConfig("Qwen3ForCausalLM");
  const std::vector<int32_t> tables[] = {{1}, {0}, {2}};
  const PagedBatch batch = {
      .token_ids_T = at::zeros({8}, at::kLong),
      .sequences = {
          {0, 5, 0, tables[0].data()}, {5, 2, 3, tables[1].data()}, {7, 1, 3, tables[2].data()}}};
  const auto generator = at::detail::createCPUGenerator(7);
  const at::Tensor q = at::randn({8, 4, 8}, generator), k = at::randn({8, 2, 8}, generator),
                   v = at::randn({8, 2, 8}, generator), q_norm = at::rand({8}, generator),
                   k_norm = at::rand({8}, generator);
  RopeTable rope(config.rope, config.head_dim, at::kCPU, at::kFloat);
  for (const bool norms : {true, false}) {
    at::Tensor results[2];
    for (const bool together : {true, false}) {
      KvPages pages(config, 3, at::kFloat, at::kCPU, KvPages::Layout::kPlain);
      // Three positions are in the pages. What follows a sequence's end may be anything.
      for (const at::Tensor& stored : {pages.keys(1), pages.values(1)}) {
        stored.fill_(std::numeric_limits<float>::quiet_NaN());
        stored.narrow(2, 0, 3).zero_();
      }
      const PagedAttentionLayers attention(batch, &pages, config);
      const Rotation rotation = rope.Gather(attention.positions_T(), attention.num_positions());
      const at::Tensor q_weight = norms ? q_norm : at::Tensor(),
                       k_weight = norms ? k_norm : at::Tensor();
      const auto ready = [&](const at::Tensor& x, const at::Tensor& weight) {
        return NormRotateHeads(x, weight, config.rms_norm_eps, rotation.cos_T1D, rotation.sin_T1D);
      };
      results[together] = together
                              ? attention.RotateAndRun(1, q, k, v, q_weight, k_weight, rotation)
                              : attention.Run(1, ready(q, q_weight), ready(k, k_weight), v);
    }
    EXPECT_TRUE(at::equal(results[0], results[1])) << "norms: " << norms;
    EXPECT_GT(results[0].abs().min().item<float>(), 0) << "norms: " << norms;
  }
}

}  // namespace
}  // namespace taopd::testing
