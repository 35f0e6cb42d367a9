// The lines that training adds to the plan, by hand, and what is said of a plan that does not fit.
#include "common/memory/training_plan.h"

#include "common/model/config/lora_config.h"
#include "tests/common/memory/public_configs.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// A model of which every number can be multiplied out.
ModelConfig SmallConfig() {
  return {.architecture = "Qwen3ForCausalLM",
          .vocab_size = 1000,
          .hidden_size = 64,
          .intermediate_size = 128,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 16,
          .max_position_embeddings = 512,
          .tie_word_embeddings = true,
          .qk_norm = true};
}

TrainingPlanInput Input(const ModelConfig& config, const std::string& device, int64_t limit_bytes) {
  TrainingPlanInput input;
  input.engine.config = config;
  input.engine.dtype = DataType::kBFloat16;
  input.engine.budget = Budget(device, limit_bytes);
  input.engine.max_model_len = 256;
  input.engine.max_num_seqs = 8;
  input.engine.max_num_batched_tokens = 1024;
  input.engine.head_workspace_bytes = 1 << 20;
  input.engine.kv_cache_bytes = 4 * kGib;
  input.micro_batch_tokens = 500;
  input.micro_batch_rows = 400;
  input.head_workspace_bytes = 1 << 20;
  input.support_size = 16;
  input.step_rows = 10000;
  return input;
}

// One of four ranks holds a quarter of the sharded bytes, and those on their way.
TEST(TrainingLines, OfSeveralRanks) {
  const ModelConfig config = SmallConfig();
  const int64_t P = config.NumParameters();
  TrainingPlanInput input = Input(config, "cpu", kGib);
  input.num_ranks = 4;
  input.bucket_elements = 2000;
  input.buckets_in_flight = 3;
  const auto whole = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(whole, "optimizer moments"), 8 * ((P + 3) / 4));
  EXPECT_EQ(BytesOfLine(whole, "gradients"), 4 * P);
  EXPECT_EQ(BytesOfLine(whole, "gradient buckets"), 4 * 3 * 2000);
  input.shard_gradients = true;
  const auto sharded = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(sharded, "gradients"), 4 * ((P + 3) / 4));
  // All of so small a model: the embedding and three layers.
  EXPECT_EQ(BytesOfLine(sharded, "gradient buckets"), 4 * (3 * 2000 + P));
  input.engine.config.num_hidden_layers = 30;
  const int64_t layer = 2 * 64 * (64 + 32) + 3 * 64 * 128 + 2 * 64;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "gradient buckets"),
            4 * (3 * 2000 + 1000 * 64 + 3 * layer + 2000));
  input.num_ranks = 1;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "gradient buckets"), -1);
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "gradients"),
            4 * input.engine.config.NumParameters());
}

TEST(TrainingLines, OfASmallModel) {
  const ModelConfig config = SmallConfig();
  const int64_t P = config.NumParameters();
  TrainingPlanInput input = Input(config, "cpu", kGib);
  const auto lines = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(lines, "master weights"), 4 * P);
  EXPECT_EQ(BytesOfLine(lines, "optimizer moments"), 8 * P);
  EXPECT_EQ(BytesOfLine(lines, "gradients"), 4 * P);
  // A layer and token: 4 H + 2 Q + 2 K + 2 I; two norms and 4 heads' sums in float32.
  EXPECT_EQ(BytesOfLine(lines, "training activations"),
            3 * 500 * ((4 * 64 + 2 * 64 + 2 * 32 + 2 * 128) * 2 + (2 + 4) * 4));
  // The gradients of gate, up and their product, and of three rows of H.
  EXPECT_EQ(BytesOfLine(lines, "backward buffers"), 500 * (3 * 128 + 3 * 64) * 2);
  // Hidden states and their gradient, the logits of all rows (0.8 MB).
  EXPECT_EQ(BytesOfLine(lines, "loss head"), 2 * 400 * 64 * 2 + 400 * 1000 * 2);
  EXPECT_EQ(BytesOfLine(lines, "scored rollouts"), 10000 * (16 * 8 + 20));
  // The head is done when the layers begin.
  EXPECT_EQ(LineOf(lines, "loss head")->kind, MemoryKind::kHeld);
  EXPECT_EQ(LineOf(lines, "backward buffers")->kind, MemoryKind::kLimit);
  input.float32_master = false;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "master weights"), -1);
}

TEST(TrainingLines, WithoutFusedFunctionsMoreIsKept) {
  const auto lines = TrainingLines(Input(SmallConfig(), "cuda:0", kGib));
  // A layer and token: 4 H + 3 Q + 2 K, Q + K of the norms, 3 I; two norms, 4 + 2 heads' norms and
  // 4 heads' sums in float32.
  EXPECT_EQ(BytesOfLine(lines, "training activations"),
            3 * 500 * ((4 * 64 + 3 * 64 + 2 * 32 + 64 + 32 + 3 * 128) * 2 + (2 + 4 + 2 + 4) * 4));
  // The gradients of gate and up, of three rows of H, and of the embedding.
  EXPECT_EQ(BytesOfLine(lines, "backward buffers"), 500 * (2 * 128 + 3 * 64) * 2 + 1000 * 64 * 2);
}

// On a GPU, 512 rows are computed at a time even if the workspace is smaller.
TEST(TrainingLines, TheHeadOnAGpuHasALeastWorkspace) {
  constexpr int64_t kMib = int64_t{1} << 20;
  TrainingPlanInput input = Input(PublicConfig(kQwen3_8b), "cuda:0", 74 * kGib);
  input.micro_batch_rows = 8192;
  const int64_t states = 2 * 8192 * 4096 * 2;
  const int64_t row_bytes = (151936 + 4096) * (4 + 2);
  const auto workspace = [&] {
    return BytesOfLine(TrainingLines(input), "loss head") - states * input.micro_batch_rows / 8192;
  };
  EXPECT_EQ(workspace(), 40 * kMib + 512 * row_bytes);
  input.head_workspace_bytes = 2048 * kMib;
  EXPECT_EQ(workspace(), 2048 * kMib);
  input.micro_batch_rows = 16;  // All rows take less.
  EXPECT_EQ(workspace(), 40 * kMib + 16 * row_bytes);
  input.engine.dtype = DataType::kFloat32;  // E replaces the logits.
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "loss head"),
            2 * 16 * 4096 * 4 + 40 * kMib + 16 * (151936 * 4 + 4096 * 8));
}

TEST(TrainingLines, RecomputationKeepsLessAndComputesALayerAgain) {
  TrainingPlanInput input = Input(SmallConfig(), "cpu", kGib);
  const int64_t all = BytesOfLine(TrainingLines(input), "training activations");
  const int64_t buffers = BytesOfLine(TrainingLines(input), "backward buffers");
  input.recompute = Recompute::kAttention;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "training activations"),
            3 * 500 * ((4 * 64 + 2 * 128) * 2 + 2 * 4));
  input.recompute = Recompute::kFull;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "training activations"), 3 * 500 * 64 * 2);
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "backward buffers"),
            buffers + all / 3 + 500 * 6 * 64 * 2);
}

TEST(TrainingLines, Float32NeedsNoMasterAndBfloat16MomentsAreHalf) {
  TrainingPlanInput input = Input(SmallConfig(), "cpu", kGib);
  input.engine.dtype = DataType::kFloat32;
  input.bfloat16_moments = true;
  const auto lines = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(lines, "master weights"), -1);
  EXPECT_EQ(BytesOfLine(lines, "optimizer moments"), 4 * SmallConfig().NumParameters());
  EXPECT_EQ(BytesOfLine(lines, "gradients"), 4 * SmallConfig().NumParameters());
}

TEST(TrainingLines, AdaptersAreTrainedInsteadOfTheWeights) {
  TrainingPlanInput input = Input(SmallConfig(), "cpu", kGib);
  LoraConfig lora = {.rank = 8,
                     .target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                        "up_proj", "down_proj"}};
  input.lora = CountLoraParameters(SmallConfig(), lora);
  // Inputs and outputs of q, k, v, o and the three of the MLP.
  constexpr int64_t kP = 3 * 8 * (128 + 96 + 96 + 128 + 3 * 192);
  EXPECT_EQ(input.lora.total(), kP);
  const auto lines = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(lines, "adapters"), 4 * kP);
  EXPECT_EQ(BytesOfLine(lines, "optimizer moments"), 8 * kP);
  EXPECT_EQ(BytesOfLine(lines, "gradients"), 4 * kP);
  EXPECT_EQ(BytesOfLine(lines, "master weights"), -1) << "adapters are float32";
  EXPECT_EQ(BytesOfLine(lines, "rollout weights"), -1);
  input.copies_rollout_weights = true;
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "rollout weights"), 4 * kP) << "the base is shared";
  input.copies_rollout_weights = false;
  // The copied gradient of gate and up.
  input.lora = LoraCounts();
  EXPECT_EQ(BytesOfLine(lines, "backward buffers"),
            BytesOfLine(TrainingLines(input), "backward buffers") + 500 * 2 * 128 * 2);
  EXPECT_EQ(BytesOfLine(TrainingLines(input), "adapters"), -1);
}

// Saved modules have the model's type, and a master copy if that is bfloat16.
TEST(TrainingLines, SavedModulesAreTrainedBesideTheAdapters) {
  TrainingPlanInput input = Input(SmallConfig(), "cpu", kGib);
  input.copies_checkpoints = true;
  input.copies_rollout_weights = true;
  input.lora.adapters = 1000;
  const auto without = TrainingLines(input);
  input.lora.norms = 100;
  input.lora.embedding = 20;
  const auto lines = TrainingLines(input);
  EXPECT_EQ(BytesOfLine(without, "master weights"), -1);
  EXPECT_EQ(BytesOfLine(lines, "master weights"), 4 * 120);
  const auto more = [&](const std::string& line) {
    return BytesOfLine(lines, line) - BytesOfLine(without, line);
  };
  EXPECT_EQ(more("adapters"), 0);
  EXPECT_EQ(more("optimizer moments"), 8 * 120);
  EXPECT_EQ(more("gradients"), 4 * 120);
  EXPECT_EQ(more("checkpoint copy"), (2 + 4 + 8) * 120);
  EXPECT_EQ(more("rollout weights"), 2 * 120);
}

// The copy of a checkpoint is the host's in any case.
TEST(TrainingLines, OffloadMovesTheOptimizersStateToTheHost) {
  TrainingPlanInput input = Input(SmallConfig(), "cuda:0", kGib);
  input.copies_checkpoints = true;
  const auto resident = TrainingLines(input);
  input.offload_elements = 1000;
  const auto offloaded = TrainingLines(input);
  const int64_t P = SmallConfig().NumParameters();
  EXPECT_EQ(HeldBytes(resident, "cuda:0") - HeldBytes(offloaded, "cuda:0"), 12 * P);
  EXPECT_EQ(HeldBytes(offloaded, "cpu") - HeldBytes(resident, "cpu"), 12 * P + 2 * 1000 * 6);
  EXPECT_EQ(BytesOfLine(offloaded, "offload buffers"), 2 * 1000 * 6);
  EXPECT_EQ(BytesOfLine(offloaded, "checkpoint copy"), BytesOfLine(resident, "checkpoint copy"));
}

// The pool is what max_num_seqs sequences can fill, however large the limit is.
TEST(PlanTraining, AddsTheEnginesLinesAndBoundsTheKvPool) {
  const ModelConfig config = SmallConfig();
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanTraining(Input(config, "cpu", kGib)));
  const int64_t block_bytes = KvBlockBytes(config, DataType::kBFloat16, true);
  EXPECT_EQ(plan.kv_pool_bytes(), 8 * (256 / kBlockTokens) * block_bytes);
  EXPECT_EQ(BytesOfLine(plan.lines, "embedding"), 1000 * 64 * 2);
  EXPECT_GT(BytesOfLine(plan.lines, "packed projections"), 0);
  EXPECT_EQ(BytesOfLine(plan.lines, "projections"), CountWeights(config).projections * 2)
      << "parameters are not mapped";
  EXPECT_EQ(plan.total_bytes, HeldBytes(plan.lines, "cpu"));
}

// One mini-batch a step: what the rollouts needed is free again, and counts once.
TEST(PlanTraining, PhasesThatDoNotOverlapShareTheirMemory) {
  TrainingPlanInput input = Input(SmallConfig(), "cpu", kGib);
  input.overlaps = false;
  ASSERT_OK_AND_ASSIGN(const EnginePlan small_blocks, PlanTraining(input));
  EXPECT_EQ(BytesOfLine(small_blocks.lines, "training, beyond the rollouts' memory"),
            BytesOfLine(small_blocks.lines, "training activations") +
                BytesOfLine(small_blocks.lines, "loss head"))
      << "the heap of a CPU keeps them";
  input = Input(SmallConfig(), "cuda:0", 4 * kGib);
  ASSERT_OK_AND_ASSIGN(const EnginePlan both, PlanTraining(input));
  input.overlaps = false;
  ASSERT_OK_AND_ASSIGN(const EnginePlan one, PlanTraining(input));
  const int64_t passes =
      BytesOfLine(both.lines, "training activations") +
      std::max(BytesOfLine(both.lines, "backward buffers"), BytesOfLine(both.lines, "loss head"));
  const int64_t rollouts = BytesOfLine(both.lines, "activations") +
                           BytesOfLine(both.lines, "head workspace") + both.kv_pool_bytes();
  EXPECT_EQ(both.total_bytes - one.total_bytes, std::min(passes, rollouts));
  input.micro_batch_tokens = 50'000;
  input.engine.max_num_seqs = 1;
  ASSERT_OK_AND_ASSIGN(const EnginePlan large, PlanTraining(input));
  EXPECT_GT(BytesOfLine(large.lines, "training, beyond the rollouts' memory"), 0);
}

// The paper's student with the default micro-batch on one device of 80 GB. Qwen3-8B stands in for a
// model that does not fit: its master weights and moments alone are 98 GB.
TEST(PlanTraining, WhatDoesNotFitIsNamedWithItsRemedy) {
  TrainingPlanInput large = Input(PublicConfig(kQwen3_8b), "cuda", 74 * kGib);
  EnginePlan refused;
  EXPECT_ERROR(PlanTraining(large, &refused), kResourceExhausted,
               "The line that is too large is \"optimizer moments\"");
  EXPECT_THAT(PlanTraining(large).status().message(),
              HasSubstr("set optimizer.moments to bfloat16 or optimizer.offload to true"));
  // There the host is all there is.
  large.engine.budget.device = "cpu";
  EXPECT_THAT(PlanTraining(large).status().message(),
              HasSubstr("set optimizer.moments to bfloat16, or"));
  EXPECT_GT(refused.lines.size(), 8u);

  // Everything fits but the activations.
  TrainingPlanInput long_batch = Input(SmallConfig(), "cuda", 4 * kGib);
  long_batch.micro_batch_tokens = 2'000'000;
  const auto plan = PlanTraining(long_batch);
  EXPECT_ERROR(plan, kResourceExhausted, "\"training activations\"");
  EXPECT_THAT(plan.status().message(),
              HasSubstr("set trainer.recompute to full, or lower trainer.micro_batch_tokens"));
  EXPECT_THAT(plan.status().message(), HasSubstr("exceeds its 4.0 GiB (a test)"));

  TrainingPlanInput many = Input(SmallConfig(), "cuda", 4 * kGib);
  many.engine.max_num_seqs = 1 << 20;
  const auto pool = PlanTraining(many);
  EXPECT_ERROR(pool, kResourceExhausted, "\"KV pool\"");
  EXPECT_THAT(pool.status().message(), HasSubstr("lower rollout.kv_cache_gb"));
}

}  // namespace
}  // namespace taopd::testing
