#include "common/memory/engine_plan.h"

#include "tests/common/memory/public_configs.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
// Qwen3-8B in bfloat16: 32 tokens of 147,456 bytes.
constexpr int64_t kBlockBytes8b = 4718592;

// Returns the bytes of a line, or -1 if there is none.
int64_t BytesOfLine(const EnginePlan& plan, const std::string& name,
                    MemoryKind kind = MemoryKind::kHeld, const std::string& device = "") {
  for (const MemoryLine& line : plan.lines) {
    const bool here = line.device == (device.empty() ? plan.budget.device : device);
    if (NameOf(line.item) == name && line.kind == kind && here) return line.bytes;
  }
  return -1;
}

TEST(PlanEngine, Qwen3_8bOnACpuMapsTheWeightsAndPacksThem) {
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan,
                       PlanEngine(Input(kQwen3_8b, Budget("cpu", 64 * kGib))));
  EXPECT_EQ(BytesOfLine(plan, "runtime"), kRuntimeBytes);
  EXPECT_EQ(BytesOfLine(plan, "embedding"), 1244659712);
  EXPECT_EQ(BytesOfLine(plan, "head", MemoryKind::kReclaimable, "cpu"), 1244659712);
  EXPECT_EQ(BytesOfLine(plan, "norms and biases"), 616448);
  EXPECT_EQ(BytesOfLine(plan, "projections"), -1);
  EXPECT_EQ(BytesOfLine(plan, "projections", MemoryKind::kReclaimable), 13891534848);
  EXPECT_EQ(BytesOfLine(plan, "packed projections"), 13891534848 / 4 * 3);
  EXPECT_EQ(BytesOfLine(plan, "packed head"), 1244659712 / 4 * 3);
  EXPECT_EQ(BytesOfLine(plan, "activations"), 943849472);
  // 441 rows of 151,936 logits would fit in 256 MiB; on a CPU a chunk has 96.
  EXPECT_EQ(BytesOfLine(plan, "head workspace"), 96 * 151936 * 4);
  const int64_t before_pool = kRuntimeBytes + int64_t{1244659712} + 616448 +
                              (int64_t{1244659712} + 13891534848) / 4 * 3 + 943849472 +
                              96 * int64_t{151936} * 4;
  // Half of what is left.
  EXPECT_EQ(plan.kv_block_bytes, kBlockBytes8b);
  EXPECT_EQ(plan.num_kv_blocks, (64 * kGib - before_pool) / kBlockBytes8b / 2);
  EXPECT_EQ(BytesOfLine(plan, "KV pool"), plan.num_kv_blocks * kBlockBytes8b);
  EXPECT_EQ(plan.total_bytes, before_pool + plan.kv_pool_bytes());
  EXPECT_EQ(plan.max_model_len, 40960);
  EXPECT_EQ(plan.max_generation_len, 40960);
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(PlanEngine, CopiedWeightsAreHeldUntilTheyArePacked) {
  EnginePlanInput input = Input(kQwen3_0_6b, Budget("cpu", 64 * kGib));
  input.stored_dtype = DataType::kFloat32;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_EQ(BytesOfLine(plan, "projections"), -1);
  EXPECT_EQ(BytesOfLine(plan, "projections", MemoryKind::kLoading), 2 * 440401920);
  EXPECT_EQ(BytesOfLine(plan, "weight files", MemoryKind::kReclaimable), 4 * 596049920LL);
  EXPECT_EQ(BytesOfLine(plan, "head", MemoryKind::kReclaimable, "cpu"), -1);  // tied
  EXPECT_EQ(BytesOfLine(plan, "packed head"), 311164928 / 4 * 3);
  // The pool, the logits and the activations are larger than what they take the place of.
  EXPECT_EQ(plan.total_bytes, HeldBytes(plan.lines, "cpu"));
  EnginePlanInput scores = input;
  scores.kv_cache_bytes = 0;
  scores.max_model_len = 1024;
  ASSERT_OK_AND_ASSIGN(const EnginePlan loading, PlanEngine(scores));
  const int64_t of_work =
      BytesOfLine(loading, "activations") + BytesOfLine(loading, "head workspace");
  ASSERT_LT(of_work, 2 * 440401920);
  EXPECT_EQ(loading.total_bytes, HeldBytes(loading.lines, "cpu") - of_work + 2 * 440401920);
  scores.budget.limit_bytes = loading.total_bytes;
  EXPECT_TRUE(PlanEngine(scores).ok());
  scores.budget.limit_bytes = loading.total_bytes - 1;
  EXPECT_ERROR(PlanEngine(scores), kResourceExhausted, "the memory plan takes");

  EnginePlanInput replaced = input;
  replaced.takes_weights = true;
  ASSERT_OK_AND_ASSIGN(const EnginePlan kept, PlanEngine(replaced));
  EXPECT_EQ(BytesOfLine(kept, "projections"), 2 * 440401920);

  // A trainer's parameters are never mapped, and no file backs them.
  input.stored_dtype.reset();
  input.weights_are_parameters = true;
  ASSERT_OK_AND_ASSIGN(const EnginePlan trained, PlanEngine(input));
  EXPECT_EQ(BytesOfLine(trained, "projections"), 2 * 440401920);
  EXPECT_EQ(BytesOfLine(trained, "weight files", MemoryKind::kReclaimable), -1);
  input.stored_dtype = DataType::kBFloat16;
  ASSERT_OK_AND_ASSIGN(const EnginePlan stored, PlanEngine(input));
  EXPECT_EQ(BytesOfLine(stored, "projections"), 2 * 440401920);
}

TEST(PlanEngine, OtherLinesCountWhereTheyAreHeld) {
  EnginePlanInput input = Input(kQwen3_0_6b, Budget("cuda:0", 16 * kGib));
  input.kv_cache_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const EnginePlan alone, PlanEngine(input));
  input.other_lines = {{MemoryItem::kGradients, "cuda:0", MemoryKind::kHeld, 3 * kGib, ""},
                       {MemoryItem::kMasterWeights, "cpu", MemoryKind::kHeld, 50 * kGib, ""}};
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_EQ(plan.total_bytes, alone.total_bytes + 3 * kGib);
  EXPECT_EQ(BytesOfLine(plan, "master weights", MemoryKind::kHeld, "cpu"), 50 * kGib);
  input.other_lines[0].bytes = 15 * kGib;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "\"gradients\" with 15.0 GiB");
}

TEST(PlanEngine, Float16OnACpuIsComputedInFloat32) {
  EnginePlanInput input = Input(kQwen3_1_7b, Budget("cpu", 64 * kGib));
  input.dtype = DataType::kFloat16;
  input.stored_dtype = DataType::kFloat16;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_EQ(BytesOfLine(plan, "embedding"), 622329856);
  EXPECT_EQ(BytesOfLine(plan, "packed projections"), 4 * 1409286144LL);
  EXPECT_EQ(BytesOfLine(plan, "packed head"), 4 * 311164928);
  EXPECT_EQ(plan.kv_block_bytes, 2 * 32 * 114688);  // of float32
}

TEST(PlanEngine, MixtureOfExpertsOnAnH100) {
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan,
                       PlanEngine(Input(kQwen3_30b, Budget("cuda:0", 72 * kGib))));
  EXPECT_EQ(BytesOfLine(plan, "runtime"), kGib);
  EXPECT_EQ(BytesOfLine(plan, "projections"), 59819163648);
  EXPECT_EQ(BytesOfLine(plan, "packed projections"), -1);
  EXPECT_EQ(BytesOfLine(plan, "activations"), 1520566272);
  EXPECT_EQ(BytesOfLine(plan, "weight files", MemoryKind::kReclaimable, "cpu"), 61064245248);
  EXPECT_EQ(BytesOfLine(plan, "runtime", MemoryKind::kHeld, "cpu"), kRuntimeBytes);
  // A GPU gives the pool everything that is left; 110 rows of four buffers of logits fit.
  const int64_t before_pool =
      kGib + 2 * 622329856LL + 2 * 210944 + 59819163648 + 1520566272 + 110 * int64_t{151936} * 16;
  EXPECT_EQ(plan.kv_block_bytes, 32 * 98304);
  EXPECT_EQ(plan.num_kv_blocks, (72 * kGib - before_pool) / (32 * 98304));
  EXPECT_EQ(plan.total_bytes, before_pool + plan.kv_pool_bytes());
  EXPECT_LE(plan.total_bytes, 72 * kGib);
}

TEST(PlanEngine, PoolIsNoLargerThanAllSequencesNeed) {
  EnginePlanInput input = Input(kQwen3_0_6b, Budget("cuda:0", 72 * kGib));
  input.max_num_seqs = 3;
  input.max_model_len = 100;  // four blocks
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_EQ(plan.num_kv_blocks, 12);
  EXPECT_EQ(plan.max_generation_len, 100);
  input.budget = Budget("cpu", 64 * kGib);
  ASSERT_OK_AND_ASSIGN(const EnginePlan on_cpu, PlanEngine(input));
  EXPECT_EQ(on_cpu.num_kv_blocks, 12);
  // And a step has no more rows than all sequences have tokens.
  const auto activations = ActivationBytes(input.config, 300, DataType::kBFloat16, false);
  EXPECT_EQ(BytesOfLine(plan, "activations"), activations);
}

TEST(PlanEngine, ExplicitPoolIsTakenAsGivenUpToWhatCanBeFilled) {
  EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 64 * kGib));
  input.kv_cache_bytes = 10 * kBlockBytes8b + 5;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_EQ(plan.num_kv_blocks, 10);
  EXPECT_EQ(plan.max_generation_len, 320);
  EXPECT_THAT(plan.warnings,
              ElementsAre("the KV pool holds 320 tokens: requests that generate are limited to 320 "
                          "tokens (max_generation_len), below the 40960 of max_model_len"));

  input.kv_cache_bytes = kBlockBytes8b - 1;
  EXPECT_ERROR(PlanEngine(input), kInvalidArgument,
               "kv_cache_bytes 4718591 holds no block of 32 tokens, which takes 4718592 bytes");
  input.kv_cache_bytes = 10 * kBlockBytes8b;
  input.max_model_len = 321;
  EXPECT_ERROR(PlanEngine(input), kInvalidArgument,
               "kv_cache_bytes 47185920 holds no sequence of max_model_len 321, which takes "
               "51904512 bytes");
  input.max_model_len = 320;
  EXPECT_OK(PlanEngine(input));
  input.kv_cache_bytes = 60 * kGib;
  ASSERT_OK_AND_ASSIGN(const EnginePlan filled, PlanEngine(input));
  EXPECT_EQ(filled.num_kv_blocks, 10 * input.max_num_seqs);
  input.max_model_len = 0;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "\"KV pool\" with 60.0 GiB");
}

TEST(PlanEngine, WithoutPoolItOnlyScores) {
  EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 64 * kGib));
  input.kv_cache_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  EXPECT_TRUE(plan.scores_only);
  EXPECT_EQ(plan.num_kv_blocks, 0);
  EXPECT_EQ(plan.max_generation_len, 0);
  EXPECT_EQ(BytesOfLine(plan, "KV pool"), -1);
  EXPECT_EQ(BytesOfLine(plan, "packed head"), 1244659712 / 4 * 3);
  EXPECT_THAT(PlanText(plan), HasSubstr("scores only"));
  // The longest sequence is one step.
  const int64_t in_one_step = BytesOfLine(plan, "activations");
  input.max_model_len = 4 * input.max_num_batched_tokens;
  ASSERT_OK_AND_ASSIGN(const EnginePlan shorter, PlanEngine(input));
  EXPECT_EQ(BytesOfLine(shorter, "activations") * input.config.max_position_embeddings,
            in_one_step * input.max_model_len);
  // A length that nobody asked for gives way.
  input.max_model_len = 0;
  input.budget.limit_bytes = plan.total_bytes - 1;
  ASSERT_OK_AND_ASSIGN(const EnginePlan cut, PlanEngine(input));
  EXPECT_EQ(cut.max_model_len, input.config.max_position_embeddings / 2);
  EXPECT_THAT(cut.warnings, ElementsAre(HasSubstr("limited to 20480 tokens, below the 40960")));
}

// Returns the bytes of everything but the pool.
int64_t BytesBeforePool(EnginePlanInput input) {
  const EnginePlan plan = PlanEngine(input).value();
  return plan.total_bytes - plan.kv_pool_bytes();
}

TEST(PlanEngine, OnTheCpuOneSequenceMayTakeMoreThanHalfOfTheRest) {
  EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 64 * kGib));
  const int64_t before_pool = BytesBeforePool(input);
  input.max_model_len = 3200;  // 100 blocks
  input.budget.limit_bytes = before_pool + 100 * kBlockBytes8b;
  ASSERT_OK_AND_ASSIGN(const EnginePlan one, PlanEngine(input));
  EXPECT_EQ(one.num_kv_blocks, 100);
  input.budget.limit_bytes = before_pool + 100 * kBlockBytes8b - 1;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "one sequence of max_model_len 3200 needs ");
  input.budget.limit_bytes = before_pool + 250 * kBlockBytes8b;
  ASSERT_OK_AND_ASSIGN(const EnginePlan half, PlanEngine(input));
  EXPECT_EQ(half.num_kv_blocks, 125);
  // A length that nobody asked for is limited instead.
  input.max_model_len = 0;
  input.budget.limit_bytes = before_pool + 100 * kBlockBytes8b;
  ASSERT_OK_AND_ASSIGN(const EnginePlan limited, PlanEngine(input));
  EXPECT_EQ(limited.max_generation_len, 3200);
  EXPECT_EQ(limited.max_model_len, 40960);
  EXPECT_THAT(limited.warnings, ElementsAre(HasSubstr("limited to 3200 tokens")));
  input.budget.limit_bytes = before_pool + kBlockBytes8b - 1;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "one block of 32 tokens needs ");
}

TEST(PlanEngine, NamesTheLineThatIsTooLarge) {
  EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 12 * kGib));
  EnginePlan refused;
  const absl::Status status = PlanEngine(input, &refused).status();
  EXPECT_ERROR(status, kResourceExhausted,
               "exceeds its 12.0 GiB (a test). The line that is too large is \"packed "
               "projections\" with 9.7 GiB: use a machine with more memory or a smaller model");
  EXPECT_EQ(BytesOfLine(refused, "packed projections"), 13891534848 / 4 * 3);
  EXPECT_GT(refused.total_bytes, 12 * kGib);

  input.dtype = DataType::kFloat32;
  input.budget = Budget("cuda:0", 24 * kGib);
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted,
               "\"projections\" with 25.9 GiB: load it as bfloat16, or use a device with more "
               "memory or a smaller model");
  input = Input(kQwen3_0_6b, Budget("cuda:0", 8 * kGib));
  input.max_num_batched_tokens = 1 << 20;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "lower max_num_batched_tokens");
  input.max_num_batched_tokens = 1 << 15;
  input.head_workspace_bytes = 100 * kGib;
  EXPECT_ERROR(PlanEngine(input), kResourceExhausted, "lower head_workspace_bytes");
}

TEST(PlanEngine, RefusesBadOptionsByName) {
  const auto refused = [](void (*change)(EnginePlanInput&), const std::string& says) {
    EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 64 * kGib));
    change(input);
    EXPECT_ERROR(PlanEngine(input), kInvalidArgument, says);
  };
  refused([](auto& input) { input.max_model_len = 40961; },
          "max_model_len 40961 exceeds the model's max_position_embeddings 40960");
  refused([](auto& input) { input.max_num_seqs = 0; }, "max_num_seqs 0");
  refused([](auto& input) { input.max_num_batched_tokens = 0; }, "max_num_batched_tokens 0");
  refused([](auto& input) { input.kv_cache_bytes = -2; }, "kv_cache_bytes -2");
}

TEST(PlanEngine, SlidingWindowsAndBiasesCount) {
  EnginePlanInput input = Input(R"({
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
    "use_sliding_window": true, "sliding_window": 256, "max_window_layers": 2,
    "tie_word_embeddings": true})",
                                Budget("cpu", 64 * kGib));
  ASSERT_TRUE(input.config.HasSlidingLayers());
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  // A layer: norms 2 * 64; biases of q 64, k 32, v 32. And the final norm.
  EXPECT_EQ(BytesOfLine(plan, "norms and biases"), (4 * (128 + 128) + 64) * 2);
  // All positions of all layers: 4 layers * 2 heads * 2 bytes * (16 of a key, and 16 of a value
  // that are padded to 32).
  EXPECT_EQ(plan.kv_block_bytes, 32 * 4 * 2 * 2 * (16 + 32));
}

TEST(MemoryTable, AlignsItsColumns) {
  EXPECT_EQ(
      MemoryTable({{MemoryItem::kRuntime, "cpu", MemoryKind::kHeld, 167772160, "libraries"},
                   {MemoryItem::kWeightFiles, "cpu", MemoryKind::kReclaimable, 5, ""},
                   {MemoryItem::kBackwardBuffers, "cuda:0", MemoryKind::kLimit, 4294967296, "x"}}),
      "device  memory for                       bytes     size  note\n"
      "cpu     runtime                      167772160  0.2 GiB  libraries\n"
      "cpu     weight files (reclaimable)           5  0.0 MiB\n"
      "cuda:0  backward buffers (limit)    4294967296  4.0 GiB  x\n");
}

TEST(MemoryTable, SumsWhatIsHeldOnADevice) {
  using enum MemoryItem;
  const std::vector<MemoryLine> lines = {{kRuntime, "cpu", MemoryKind::kHeld, 5, ""},
                                         {kProjections, "cpu", MemoryKind::kReclaimable, 70, ""},
                                         {kKvPool, "cuda:0", MemoryKind::kHeld, 11, ""},
                                         {kLossHead, "cpu", MemoryKind::kLimit, 900, ""},
                                         {kHeap, "cpu", MemoryKind::kHeld, 6, ""}};
  EXPECT_EQ(HeldBytes(lines, "cpu"), 11);
  EXPECT_EQ(HeldBytes(lines, "cuda:0"), 11);
  EXPECT_EQ(LargestLine(lines, "cpu")->item, kHeap);
  EXPECT_EQ(LargestLine(lines, "cuda:1"), nullptr);
}

TEST(PlanText, EndsWithTheTotalsAndTheWarnings) {
  EnginePlanInput input = Input(kQwen3_8b, Budget("cpu", 64 * kGib));
  input.kv_cache_bytes = 10 * kBlockBytes8b;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, PlanEngine(input));
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("10 blocks of 32 tokens: 0.0 sequences of 40960 tokens\n"));
  EXPECT_THAT(text, HasSubstr("\ntotal on cpu: 12.9 GiB of 64.0 GiB (a test)\n"
                              "max_model_len: 40960\n"
                              "max_generation_len: 320\n"
                              "warning: the KV pool holds 320 tokens"));
}

}  // namespace
}  // namespace taopd::testing
