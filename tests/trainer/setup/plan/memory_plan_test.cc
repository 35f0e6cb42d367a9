// Tests of the memory plan's choices for settings that are auto, and of the recipes of the paper's
// pairs, which fit GPUs of 80 GB.
#include "trainer/setup/plan/memory_plan.h"

#include "common/config/yaml.h"
#include "tests/common/memory/public_configs.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/run/train_state.h"

namespace taopd::testing {
namespace {

constexpr int64_t kGb = 1'000'000'000;

constexpr char kQwen25_7b[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
  "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
  "num_key_value_heads": 4, "vocab_size": 152064, "rope_theta": 1000000.0,
  "max_position_embeddings": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

MemoryBudget Gpu(int64_t bytes) {
  return {.device = "cuda:0", .limit_bytes = bytes * 9 / 10, .source = "a test"};
}

class MemoryPlanTest : public ::testing::Test {
 protected:
  TrainConfig Recipe(const std::string& name, const char* model) {
    WriteFile(dir_.File("config.json"), model);
    TrainConfig config;
    EXPECT_OK(ReadYamlFile(SourcePath("deploy/recipes/paper/" + name), DescribeSettings(config)));
    config.student.model = dir_.path();
    config.teacher.endpoints = {"grpc://127.0.0.1:1"};
    config.data.train = {"train.jsonl"};
    config.data.val = {"val.jsonl"};  // its responses are longer than those of training
    EXPECT_OK(CheckTrainConfig(config));
    return config;
  }

  TempDir dir_;
};

TEST_F(MemoryPlanTest, ThePapersSmallPairFitsOneGpu) {
  TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, ResolveAuto(&config, dir_.path(), Gpu(80 * kGb)));
  EXPECT_LE(plan.total_bytes, 72 * kGb);
  EXPECT_EQ(config.data.train_batch_size * config.rollout.n, 288);
  // Everything is kept, of micro-batches of one longest sequence, and the pool gets what is left.
  EXPECT_EQ(config.trainer.recompute, RecomputeChoice::kNone);
  EXPECT_EQ(config.trainer.micro_batch_tokens, 8192);
  EXPECT_GT(*config.rollout.kv_cache_gb, 15);
  EXPECT_GT(plan.total_bytes, 70 * kGb);
  EXPECT_EQ(plan.max_generation_len, 1024 + 8192);
}

// AdamW's state, float32 copies and bfloat16 moments, is on the host or divided among the GPUs.
TEST_F(MemoryPlanTest, ThePapersLargePairsFitOneGpuOrWithoutOffloadEight) {
  for (const auto& [name, model] :
       {std::pair{"qwen2.5_7b.yaml", kQwen25_7b}, {"llama3.1_8b.yaml", kLlama31_8b}}) {
    TrainConfig config = Recipe(name, model);
    EXPECT_TRUE(config.optimizer.offload);
    ASSERT_OK_AND_ASSIGN(const EnginePlan plan, ResolveAuto(&config, dir_.path(), Gpu(80 * kGb)));
    EXPECT_LE(plan.total_bytes, 72 * kGb) << name;
    EXPECT_EQ(config.data.train_batch_size * config.rollout.n, 288);
    // Room for several of the longest sequences at a time.
    EXPECT_GT(plan.kv_pool_bytes(), 5 * kGb) << name;
    ASSERT_OK_AND_ASSIGN(const ModelConfig student, LoadModelConfig(dir_.path()));
    EXPECT_GT(HeldBytes(plan.lines, "cpu"), 8 * student.NumParameters());
    EXPECT_THAT(PlanText(plan), HasSubstr("total on the host: "));
    // A CPU cannot offload to a host.
    MemoryBudget cpu = Gpu(800 * kGb);
    cpu.device = "cpu";
    EXPECT_ERROR(ResolveAuto(&config, dir_.path(), cpu), kInvalidArgument,
                 "optimizer.offload = true");

    TrainConfig on_gpus = Recipe(name, model), alone = on_gpus;
    on_gpus.optimizer.offload = alone.optimizer.offload = false;
    ASSERT_OK_AND_ASSIGN(const EnginePlan of_eight,
                         ResolveAuto(&on_gpus, dir_.path(), Gpu(80 * kGb), {.num_ranks = 8}));
    EXPECT_LE(of_eight.total_bytes, 72 * kGb);
    EXPECT_GT(of_eight.kv_pool_bytes(), 5 * kGb) << name;
    // Weights, gradients, master weights and moments alone take 14 bytes a parameter.
    EXPECT_ERROR(ResolveAuto(&alone, dir_.path(), Gpu(80 * kGb)), kResourceExhausted,
                 "the memory plan takes");
    // A refused configuration is not changed.
    EXPECT_EQ(alone.trainer.recompute, RecomputeChoice::kAuto);
    EXPECT_FALSE(alone.rollout.kv_cache_gb.has_value());
  }
}

// Gradients are sharded if nothing else makes room, but not if their order must be fixed.
TEST_F(MemoryPlanTest, GradientsAreShardedIfTheyMust) {
  TrainConfig recipe = Recipe("qwen2.5_7b.yaml", kQwen25_7b);
  recipe.optimizer.offload = false;
  recipe.rollout.kv_cache_gb = 4.0;
  const auto chosen = [&](int64_t gb, int64_t num_ranks) {
    TrainConfig config = recipe;
    EXPECT_OK(ResolveAuto(&config, dir_.path(), Gpu(gb * kGb), {.num_ranks = num_ranks}));
    return NameOf(config.dist.gradients) + " " + NameOf(config.trainer.recompute);
  };
  EXPECT_EQ(chosen(160, 8), "whole none");
  EXPECT_EQ(chosen(160, 1), "auto full");
  EXPECT_EQ(chosen(80, 8), "whole full");
  EXPECT_THAT(chosen(60, 8), StartsWith("sharded"));
  recipe.dist.deterministic = true;
  TrainConfig config = recipe;
  EXPECT_ERROR(ResolveAuto(&config, dir_.path(), Gpu(60 * kGb), {.num_ranks = 8}),
               kResourceExhausted, "gradients");
  config.dist.gradients = GradientSums::kSharded;
  EXPECT_ERROR(CheckTrainConfig(config), kInvalidArgument, "dist.gradients = sharded");
}

// With less memory, more is recomputed, and then the micro-batch becomes smaller.
TEST_F(MemoryPlanTest, WhatIsAutoFollowsTheMemory) {
  TrainConfig recipe = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  recipe.data.max_response_length = 1024;
  recipe.rollout.kv_cache_gb = 4.0;
  std::vector<std::pair<RecomputeChoice, int64_t>> chosen;
  for (const int64_t gb : {160, 80, 64, 60, 56, 52, 48}) {
    TrainConfig config = recipe;
    ASSERT_OK_AND_ASSIGN(const EnginePlan plan, ResolveAuto(&config, dir_.path(), Gpu(gb * kGb)));
    EXPECT_LE(plan.total_bytes, gb * kGb * 9 / 10) << gb;
    chosen.emplace_back(config.trainer.recompute, *config.trainer.micro_batch_tokens);
  }
  EXPECT_EQ(chosen.front(), std::pair(RecomputeChoice::kNone, int64_t{16384}));
  for (size_t i = 1; i < chosen.size(); ++i) {
    EXPECT_GE(chosen[i].first, chosen[i - 1].first) << i;
    if (chosen[i].first == chosen[i - 1].first) {
      EXPECT_LE(chosen[i].second, chosen[i - 1].second) << i;
    }
  }
  EXPECT_NE(chosen.back(), chosen.front());
  // Given settings stay unchanged.
  TrainConfig given = recipe;
  given.trainer.recompute = RecomputeChoice::kAttention;
  given.trainer.micro_batch_tokens = 3000;
  given.rollout.kv_cache_gb = 2.0;
  ASSERT_OK(ResolveAuto(&given, dir_.path(), Gpu(160 * kGb)));
  EXPECT_EQ(given.trainer.recompute, RecomputeChoice::kAttention);
  EXPECT_EQ(given.trainer.micro_batch_tokens, 3000);
  EXPECT_EQ(given.rollout.kv_cache_gb, 2.0);
}

// The pool holds the concurrent sequences of a run, not those that an engine could have.
TEST_F(MemoryPlanTest, ThePoolFollowsTheSequencesOfARun) {
  TrainConfig run = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  run.trainer.mini_batch_size = run.data.train_batch_size = 4;
  run.rollout.n = 4;
  run.rollout.max_num_seqs = 256;
  run.rollout.kv_cache_gb = 64.0;
  run.data.max_prompt_length = run.data.max_response_length = run.eval.max_response_length = 128;
  const auto num_sequences = [&](const TrainConfig& config, int64_t num_ranks) {
    const MemoryBudget budget = Gpu(1000 * kGb);
    TrainConfig many = config, one = config;
    one.rollout.max_num_seqs = 1;
    const RunPlanOptions options = {.num_ranks = num_ranks};
    const auto plan = ResolveAuto(&many, dir_.path(), budget, options);
    const auto plan_of_one = ResolveAuto(&one, dir_.path(), budget, options);
    EXPECT_OK(plan);
    EXPECT_OK(plan_of_one);
    return plan->kv_pool_bytes() / plan_of_one->kv_pool_bytes();
  };
  run.eval.n = 1;
  run.eval.num_prompts = 32;
  EXPECT_EQ(num_sequences(run, 1), 32);  // the evaluation's
  run.eval.num_prompts = 8;
  EXPECT_EQ(num_sequences(run, 1), 16);  // a step's
  EXPECT_EQ(num_sequences(run, 2), 8);
  run.eval.n_by_source = {"x=3"};
  EXPECT_EQ(num_sequences(run, 1), 24);
  run.eval.num_prompts = 0;  // not known
  EXPECT_EQ(num_sequences(run, 1), 256);
  run.data.val = {};
  EXPECT_EQ(num_sequences(run, 1), 16);
}

// Returns the bytes that are held for an item, or 0.
int64_t BytesOf(const EnginePlan& plan, MemoryItem item) {
  int64_t bytes = 0;
  for (const MemoryLine& line : plan.lines) {
    if (line.item == item && line.kind == MemoryKind::kHeld) bytes += line.bytes;
  }
  return bytes;
}

// An evaluation beside training shares the frozen base with the student, as rollouts ahead do.
TEST_F(MemoryPlanTest, EvaluationsBesideTrainingHoldOnlyWhatIsTrained) {
  const auto evaluation_bytes = [&](int64_t lora_rank) {
    TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
    config.eval.mode = EvalMode::kBeside;
    config.student.lora.rank = lora_rank;
    const auto plan = ResolveAuto(&config, dir_.path(), Gpu(1000 * kGb));
    EXPECT_OK(plan);
    return BytesOf(*plan, MemoryItem::kEvaluationWeights);
  };
  const int64_t whole = evaluation_bytes(0), adapters = evaluation_bytes(16);
  EXPECT_GT(whole, int64_t{3} * kGb);  // 1.7 billion parameters in bfloat16
  EXPECT_GT(adapters, 0);
  EXPECT_LT(adapters, whole / 20);
}

// Weights that are only sent to the servers of evaluations have no packed copy.
TEST_F(MemoryPlanTest, EvaluationsElsewherePackNoWeights) {
  const auto evaluation_bytes = [&](const std::vector<std::string>& servers) {
    TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
    config.eval.mode = EvalMode::kBeside;
    config.rollout.endpoints = config.rollout.eval_endpoints = servers;
    MemoryBudget budget = Gpu(1000 * kGb);
    budget.device = "cpu";
    const auto plan = ResolveAuto(&config, dir_.path(), budget);
    EXPECT_OK(plan);
    const int64_t engine_bytes = BytesOf(*plan, MemoryItem::kEvaluationEngine);
    EXPECT_EQ(engine_bytes < kGb / 100, !servers.empty()) << engine_bytes;  // one row, or steps
    return BytesOf(*plan, MemoryItem::kEvaluationWeights);
  };
  const int64_t here = evaluation_bytes({}), elsewhere = evaluation_bytes({"grpc://a:1"});
  EXPECT_GT(elsewhere, int64_t{3} * kGb);
  EXPECT_GT(here, elsewhere + kGb);
}

TEST_F(MemoryPlanTest, ALimitOfTheCpuIsThatOfEachRank) {
  TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  config.trainer.device = "cpu";
  config.trainer.cpu_memory_limit = "1.5GiB";
  for (const int64_t num_ranks : {1, 4}) {
    ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetOf(config, num_ranks));
    EXPECT_EQ(budget.device, "cpu");
    EXPECT_EQ(budget.limit_bytes, int64_t{3} << 29);
    EXPECT_EQ(budget.source, "cpu_memory_limit");
  }
  config.trainer.cpu_memory_limit = "much";
  EXPECT_ERROR(CheckTrainConfig(config), kInvalidArgument, "trainer.cpu_memory_limit = \"much\"");
}

// The disk plan counts the files of a checkpoint.
TEST(DiskPlanOfARun, CountsTheTensorsOfACheckpoint) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    for (const MomentsDtype moments : {MomentsDtype::kFloat32, MomentsDtype::kBfloat16}) {
      for (const MasterWeights master : {MasterWeights::kFloat32, MasterWeights::kNone}) {
        Student student = {.decoder = MakeTinyStudent(dtype)};
        OptimizerConfig optimizer = {.moments = moments, .master = master};
        student.optimizer = std::make_unique<AdamW>(student.decoder->Parameters(), optimizer);
        const bool is_float32 = dtype == "float32";
        const int64_t P = student.decoder->config().NumParameters();
        const DiskPlan plan =
            PlanDisk({.weight_bytes = P * (is_float32 ? 4 : 2),
                      .state_bytes = P * optimizer.StateBytesPerParameter(is_float32)});
        EXPECT_EQ(plan.checkpoint_bytes, CheckpointCopyBytes(student))
            << dtype << " " << NameOf(moments) << " " << NameOf(master);
      }
    }
  }
}

// One version is being written by each rank, and each server may be reading another.
TEST_F(MemoryPlanTest, TheDiskPlanCountsTheWeightsForServersOfRollouts) {
  TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  ASSERT_OK_AND_ASSIGN(const DiskPlan without, DiskPlanOf(config, dir_.path(), 2));
  EXPECT_EQ(without.num_published, 0);
  config.rollout.endpoints = {"grpc://a:1", "grpc://b:1", "grpc://c:1"};
  ASSERT_OK_AND_ASSIGN(const DiskPlan with, DiskPlanOf(config, dir_.path(), 2));
  EXPECT_EQ(with.num_published, 2 + 3);
  EXPECT_EQ(with.total_bytes(), without.total_bytes() + 5 * without.model_bytes);
  config.rollout.weights_dir = dir_.path() + "/weights";
  config.run.dir = dir_.path() + "/run";
  ASSERT_OK_AND_ASSIGN(const DiskPlan same_disk, DiskPlanOf(config, dir_.path(), 2));
  EXPECT_EQ(same_disk.total_bytes(), with.total_bytes());
  config.rollout.weights_dir = "/proc/self";  // another file system
  ASSERT_OK_AND_ASSIGN(const DiskPlan apart, DiskPlanOf(config, dir_.path(), 2));
  EXPECT_EQ(apart.weights_dir, "/proc/self");
  EXPECT_EQ(apart.total_bytes(), without.total_bytes());
}

TEST_F(MemoryPlanTest, AStudentThatTeachesHasALineForEachThingItHolds) {
  const auto plan_with = [&](TeacherWeights weights, int64_t num_ranks) {
    TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
    config.teacher.kind = TeacherKind::kSelf;
    config.teacher.weights = weights;
    auto plan = ResolveAuto(&config, dir_.path(), Gpu(80 * kGb), {.num_ranks = num_ranks});
    EXPECT_OK(plan.status());
    return plan.ok() ? *plan : EnginePlan();
  };
  TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  ASSERT_OK_AND_ASSIGN(const EnginePlan server, ResolveAuto(&config, dir_.path(), Gpu(80 * kGb)));
  EXPECT_EQ(BytesOf(server, MemoryItem::kTeacherEngine), 0);
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, LoadModelConfig(dir_.path()));
  const int64_t P = model.NumParameters();
  const EnginePlan live = plan_with(TeacherWeights::kLive, 1);
  EXPECT_EQ(BytesOf(live, MemoryItem::kTeacherWeights), 0);
  EXPECT_GT(BytesOf(live, MemoryItem::kTeacherEngine), 0);
  const EnginePlan start = plan_with(TeacherWeights::kStart, 1);
  EXPECT_EQ(BytesOf(start, MemoryItem::kTeacherWeights), 2 * P);
  EXPECT_EQ(BytesOf(start, MemoryItem::kTeacherAverage), 0);
  const EnginePlan ema = plan_with(TeacherWeights::kEma, 4);
  EXPECT_EQ(BytesOf(ema, MemoryItem::kTeacherWeights), 2 * P);
  EXPECT_EQ(BytesOf(ema, MemoryItem::kTeacherAverage), (P + 3) / 4 * 4);
}

TEST_F(MemoryPlanTest, AStudentWithAdaptersAndItsTeacherShareTheBase) {
  TrainConfig config = Recipe("qwen3_1.7b.yaml", kQwen3_1_7b);
  config.teacher.kind = TeacherKind::kSelf;
  config.teacher.weights = TeacherWeights::kEma;
  config.student.lora.rank = 16;
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, LoadModelConfig(dir_.path()));
  ASSERT_OK_AND_ASSIGN(const LoraCounts counts, config.student.lora.Counts(model));
  const int64_t A = counts.adapters;
  // Inputs and outputs of q, k, v, o, gate, up and down.
  EXPECT_EQ(A, 28 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 1024) + 3 * (2048 + 6144)));
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, ResolveAuto(&config, dir_.path(), Gpu(80 * kGb)));
  EXPECT_EQ(BytesOf(plan, MemoryItem::kAdapters), 4 * A);
  EXPECT_EQ(BytesOf(plan, MemoryItem::kTeacherWeights), 4 * A);
  EXPECT_EQ(BytesOf(plan, MemoryItem::kTeacherAverage), 4 * A);
  ASSERT_OK_AND_ASSIGN(const StepWork work, StepWorkOf(config, dir_.path(), 1));
  EXPECT_EQ(work.adapter_parameters, A);
  EXPECT_EQ(work.num_parameters, model.NumParameters());
  // Float32 adapters have no master copies.
  EXPECT_EQ(work.optimizer_bytes_per_parameter, 12 + 16 + 8);
}

}  // namespace
}  // namespace taopd::testing
