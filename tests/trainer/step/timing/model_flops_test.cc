// Compares with numbers computed by hand.
#include "trainer/step/timing/model_flops.h"

#include <gtest/gtest.h>

#include "tests/trainer/step/small_model.h"

namespace taopd::testing {
namespace {

Rollout Response(int64_t num_prompt, int64_t num_response, int32_t first = 0) {
  Rollout rollout;
  rollout.prompt_ids.assign(num_prompt, first);
  rollout.response_ids.assign(num_response, 1);
  return rollout;
}

TEST(ModelFlops, AreThoseOfASmallModel) {
  // 3 + 2 - 1 = 4 tokens: 2 layers * (4 * 576 + 4 * 4 * 8) + 2 rows * 256 = 5376 multiply-adds,
  // with 6 FLOP each to train and 2 to generate.
  EXPECT_EQ(ModelFlops(SmallModel(), {Response(3, 2)}), 8 * 5376);
  // A second response to the prompt: its 3 tokens are not computed again to generate, 2 layers *
  // (3 * 576 + 3 * 3 * 8) = 3600 multiply-adds.
  EXPECT_EQ(ModelFlops(SmallModel(), {Response(3, 2), Response(3, 2)}), 16 * 5376 - 2 * 3600);
  EXPECT_EQ(ModelFlops(SmallModel(), {Response(3, 2), Response(3, 2, 7)}), 16 * 5376);
  EXPECT_EQ(ModelFlops(SmallModel(), {}), 0);
  // A given response is not generated.
  Rollout given = Response(3, 2);
  given.is_given = true;
  EXPECT_EQ(ModelFlops(SmallModel(), {given, Response(3, 2), given}), 20 * 5376);
}

TEST(ModelFlops, AMixtureCountsTheExpertsThatATokenMeets) {
  ModelConfig config = SmallModel();
  config.moe.num_experts = 8;
  config.moe.experts_per_token = 2;
  config.moe.intermediate_size = 4;
  config.moe.sparse_layers = {true, true};
  // 2 experts of 3 * 8 * 4 instead of 3 * 8 * 16: 192 + 192 weights a layer.
  EXPECT_EQ(ModelFlops(config, {Response(3, 2)}), 8 * (2 * (4 * 384 + 128) + 512));
}

TEST(ModelFlops, ThePeakIsMeasured) {
  EXPECT_GT(MeasurePeakFlops(at::kFloat), 1e8);
  EXPECT_GT(MeasurePeakFlops(at::kBFloat16), 1e7);
}

}  // namespace
}  // namespace taopd::testing
