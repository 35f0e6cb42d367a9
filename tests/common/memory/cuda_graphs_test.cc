#include "common/memory/cuda_graphs.h"

#include "common/config/kernel_mode.h"
#include "tests/common/memory/public_configs.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(CaptureSizes, AreVllmsAndTheLargest) {
  EXPECT_THAT(CaptureSizes(1), ElementsAre(1));
  EXPECT_THAT(CaptureSizes(2), ElementsAre(1, 2));
  EXPECT_THAT(CaptureSizes(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(CaptureSizes(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(CaptureSizes(30), ElementsAre(1, 2, 4, 8, 16, 24, 30));
  const std::vector<int64_t> sizes = CaptureSizes(512);
  EXPECT_EQ(sizes.size(), 51u);  // 1, 2, 4; 32 up to 256; 16 up to 512
  EXPECT_EQ(sizes[34], 256);
  EXPECT_EQ(sizes[35], 272);
  EXPECT_EQ(sizes.back(), 512);
}

// All limits and all batches.
TEST(CaptureSizes, HoldEveryBatchWithLittlePadding) {
  for (int64_t largest = 1; largest <= 600; ++largest) {
    const std::vector<int64_t> sizes = CaptureSizes(largest);
    EXPECT_EQ(sizes.front(), 1);
    EXPECT_EQ(sizes.back(), largest);
    for (int64_t num = 1; num <= largest; ++num) {
      const int64_t padded = PaddedSize(sizes, num);
      ASSERT_GE(padded, num);
      ASSERT_LE(padded - num, kMaxPaddingRows);
      ASSERT_LE(padded, std::max<int64_t>(2 * num - 1, num)) << "of " << num;
    }
    EXPECT_EQ(PaddedSize(sizes, largest + 1), 0);
  }
}

TEST(CaptureSizes, FollowTheLimitsOfTheEngine) {
  EXPECT_EQ(LargestCaptureSize({}, 256, 8192), 256);
  EXPECT_EQ(LargestCaptureSize({}, 4096, 8192), 512);
  EXPECT_EQ(LargestCaptureSize({}, 4096, 100), 100);
  EXPECT_EQ(LargestCaptureSize({.max_capture_size = 1000}, 4096, 8192), 1000);
  EXPECT_EQ(LargestCaptureSize({.max_capture_size = 7}, 256, 8192), 7);
}

TEST(CheckCaptureLimits, NamesTheOptionThatIsOutOfBounds) {
  EXPECT_OK(CheckCaptureLimits({.max_capture_size = 256}, 256));
  EXPECT_ERROR(CheckCaptureLimits({.max_capture_size = -1}, 256), kInvalidArgument,
               "max_cudagraph_capture_size -1 must be between 0 and 4096");
  EXPECT_ERROR(CheckCaptureLimits({.max_capture_size = 4097}, 8192), kInvalidArgument,
               "max_cudagraph_capture_size 4097");
  EXPECT_ERROR(CheckCaptureLimits({.max_capture_size = 257}, 256), kInvalidArgument,
               "exceeds max_num_seqs 256");
  EXPECT_ERROR(CheckCaptureLimits({.max_seq_len = 0}, 256), kInvalidArgument,
               "max_seq_len_to_capture 0 must be at least 1");
}

TEST(UsesCudaGraphs, RefusesWhatCannotBeCapturedUnlessItMayDoWithout) {
  const ModelConfig dense = PublicConfig(kQwen3_8b);
  const auto expect = [](const ModelConfig& config, const CaptureConditions& conditions,
                         const std::string& error) {
    const auto uses = [&](CudaGraphUse use) {
      return UsesCudaGraphs({.use = use}, config, conditions);
    };
    EXPECT_FALSE(*uses(CudaGraphUse::kNever));
    EXPECT_EQ(*uses(CudaGraphUse::kAuto), error.empty());
    if (error.empty()) {
      EXPECT_TRUE(*uses(CudaGraphUse::kAlways));
    } else {
      EXPECT_ERROR(uses(CudaGraphUse::kAlways), kInvalidArgument, error);
    }
  };
  expect(dense, {}, "");
  expect(dense, {.on_cpu = true}, "need a CUDA device");
  expect(dense, {.scores_only = true}, "only scores");
  expect(dense, {.kernels = KernelMode::kComposed}, "kernels = composed");
  expect(dense, {.kernels = KernelMode::kCustom}, "");
  expect(dense, {.tensor_parallel_size = 2}, "tensor_parallel_size 2: must be 1");
  expect(dense, {.dtype = DataType::kFloat16}, "float16");
  ModelConfig odd = dense;
  odd.head_dim = 127;
  expect(odd, {}, "bfloat16 and 127");
  ModelConfig sparse = dense;
  sparse.architecture = "Qwen3MoeForCausalLM";
  sparse.moe.num_experts = 4;
  sparse.moe.sparse_layers.assign(static_cast<size_t>(sparse.num_hidden_layers), false);
  expect(sparse, {}, "");
  sparse.moe.sparse_layers.back() = true;
  expect(sparse, {}, "Qwen3MoeForCausalLM");
}

class GraphPlan : public ::testing::Test {
 protected:
  static const MemoryLine* LineOf(const EnginePlan& plan) {
    return testing::LineOf(plan.lines, "CUDA graphs");
  }
  EnginePlanInput input_ = Input(kQwen3_8b, Budget("cuda:0", int64_t{80} << 30));
};

TEST_F(GraphPlan, HasALineThatTakesFromThePool) {
  ASSERT_OK_AND_ASSIGN(const EnginePlan without, PlanEngine(input_));
  EXPECT_EQ(LineOf(without), nullptr);
  input_.cuda_graphs.use = CudaGraphUse::kAuto;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input_));
  const MemoryLine* line = LineOf(plan);
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->device, "cuda:0");
  EXPECT_EQ(line->note, "35 batch sizes up to 256, sequences up to 8192 tokens");
  // 35 graphs; partial results of 32 heads in 32 partitions of 130 floats each; inputs of 4,487
  // rows with tables of 256 blocks; outputs; a block.
  const int64_t rows = 1 + 2 + 4 + 8 * 32 * 33 / 2;
  const int64_t expected = 35 * (int64_t{8} << 20) +
                           ActivationBytes(input_.config, 256, input_.dtype, false) +
                           256 * int64_t{32} * 32 * 130 * 4 + rows * (16 + (6 + 256) * 4) +
                           256 * 4096 * 2 + plan.kv_block_bytes;
  EXPECT_EQ(line->bytes, expected);
  EXPECT_EQ(plan.num_kv_blocks, (without.kv_pool_bytes() +
                                 (input_.budget.limit_bytes - without.total_bytes) - line->bytes) /
                                    plan.kv_block_bytes);
  EXPECT_LE(plan.total_bytes, input_.budget.limit_bytes);
}

TEST_F(GraphPlan, FollowsTheOptions) {
  input_.cuda_graphs = {CudaGraphUse::kAlways, 16, 4096};
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input_));
  EXPECT_EQ(LineOf(plan)->note, "5 batch sizes up to 16, sequences up to 4096 tokens");
  input_.max_model_len = 1000;
  ASSERT_OK_AND_ASSIGN(const EnginePlan shorter, PlanEngine(input_));
  EXPECT_EQ(LineOf(shorter)->note, "5 batch sizes up to 16, sequences up to 1000 tokens");
  EXPECT_LT(LineOf(shorter)->bytes, LineOf(plan)->bytes);
  input_.cuda_graphs.max_capture_size = 257;
  EXPECT_ERROR(PlanEngine(input_), kInvalidArgument, "exceeds max_num_seqs");
}

TEST_F(GraphPlan, IsRefusedOnACpuAndNamedWhenItIsTooLarge) {
  input_.cuda_graphs = {CudaGraphUse::kAlways, 0, 40960};
  input_.max_num_seqs = 512;
  input_.config.num_hidden_layers = 1;
  input_.config.vocab_size = 1000;
  input_.max_num_batched_tokens = 512;
  input_.budget.limit_bytes = int64_t{3} << 30;
  EXPECT_ERROR(PlanEngine(input_), kResourceExhausted,
               "\"CUDA graphs\" with 1.8 GiB: lower max_cudagraph_capture_size");
  input_.budget.device = "cpu";
  EXPECT_ERROR(PlanEngine(input_), kInvalidArgument, "need a CUDA device");
}

}  // namespace
}  // namespace taopd::testing
