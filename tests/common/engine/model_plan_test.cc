#include "common/engine/model_plan.h"

#include "common/io/safetensors/safetensors.h"
#include "tests/common/memory/public_configs.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr char kTiny[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
  "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 64,
  "tie_word_embeddings": true})";

class PlanModelTest : public ::testing::Test {
 protected:
  PlanModelTest() {
    budget_.limit_bytes = int64_t{64} << 30;
    WriteFile(dir_.File("config.json"), kTiny);
  }
  // Writes a file that holds only the embedding, which is all that a plan needs.
  void WriteEmbedding(const std::string& dtype, int64_t value_bytes) {
    const std::vector<std::byte> bytes(32 * 8 * value_bytes);
    ASSERT_OK(WriteSafetensors(dir_.File("model.safetensors"),
                               {{"model.embed_tokens.weight", dtype, {32, 8}, bytes}}));
  }
  absl::StatusOr<EnginePlan> Plan(const std::string& dtype) {
    return PlanModel(dir_.path(), dtype, budget_, options_);
  }

  TempDir dir_;
  MemoryBudget budget_;
  EngineOptions options_;
};

TEST_F(PlanModelTest, AutoIsWhatTheFilesStore) {
  WriteEmbedding("BF16", 2);
  ASSERT_OK_AND_ASSIGN(const EnginePlan half, Plan("auto"));
  EXPECT_EQ(BytesOfLine(half.lines, "embedding"), 32 * 8 * 2);
  EXPECT_EQ(BytesOfLine(half.lines, "weight files"), -1);  // they stay mapped
  EXPECT_THAT(half.warnings, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const EnginePlan full, Plan("float32"));
  EXPECT_EQ(BytesOfLine(full.lines, "embedding"), 32 * 8 * 4);
  EXPECT_GT(BytesOfLine(full.lines, "weight files"), 0);
  WriteEmbedding("F32", 4);
  ASSERT_OK_AND_ASSIGN(const EnginePlan stored, Plan("auto"));
  EXPECT_EQ(BytesOfLine(stored.lines, "embedding"), 32 * 8 * 4);
  EXPECT_EQ(BytesOfLine(stored.lines, "weight files"), -1);
}

TEST_F(PlanModelTest, ConfigAloneIsEnoughWithAWarning) {
  EXPECT_ERROR(Plan("auto"), kInvalidArgument, "dtype auto");
  EXPECT_ERROR(Plan("float8"), kInvalidArgument, "float8");
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, Plan("float32"));
  EXPECT_EQ(BytesOfLine(plan.lines, "embedding"), 32 * 8 * 4);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("there are no weights in " + dir_.path())));
}

TEST_F(PlanModelTest, BrokenFilesAreErrors) {
  WriteFile(dir_.File("model.safetensors.index.json"),
            R"({"weight_map": {"a": "absent.safetensors"}})");
  EXPECT_ERROR(Plan("float32"), kDataLoss, "absent.safetensors");
  WriteFile(dir_.File("model.safetensors"), "nonsense");
  EXPECT_ERROR(Plan("float32"), kDataLoss, "model.safetensors");
}

TEST_F(PlanModelTest, TakesTheEnginesOptions) {
  WriteEmbedding("F32", 4);
  // There is 1 layer with 1 head of 4 numbers; values are padded to 32 numbers. A block has 32
  // tokens.
  options_.kv_cache_bytes = int64_t{2} * 32 * (4 + 32) * 4;
  options_.max_num_seqs = 3;
  options_.max_model_len = 40;
  ASSERT_OK_AND_ASSIGN(const EnginePlan plan, Plan("auto"));
  EXPECT_EQ(plan.num_kv_blocks, 2);
  EXPECT_EQ(plan.max_model_len, 40);
  EXPECT_EQ(plan.max_generation_len, 40);
  options_.kv_cache_bytes = kAutoKvCache;
  ASSERT_OK_AND_ASSIGN(const EnginePlan automatic, Plan("auto"));
  EXPECT_EQ(automatic.num_kv_blocks, 6);
  EXPECT_EQ(BytesOfLine(automatic.lines, "head workspace"), 120 * 32 * 4);  // at most all rows
  options_.max_num_batched_tokens = 7;
  ASSERT_OK_AND_ASSIGN(const EnginePlan narrow, Plan("auto"));
  EXPECT_EQ(BytesOfLine(narrow.lines, "activations") * 120,
            BytesOfLine(automatic.lines, "activations") * 7);
  options_.head_workspace_bytes = 1;  // one row of logits
  ASSERT_OK_AND_ASSIGN(const EnginePlan chunked, Plan("auto"));
  EXPECT_EQ(BytesOfLine(chunked.lines, "head workspace"), 32 * 4);
}

TEST(PoolBytesLeft, GivesWayToWhatThePlanDidNotKnow) {
  EXPECT_EQ(PoolBytesLeft(0, 1000).value(), 1000);
  EXPECT_EQ(PoolBytesLeft(300, 1000).value(), 700);
  EXPECT_EQ(PoolBytesLeft(300, 0).value(), 0);  // the engine only scores
  EXPECT_ERROR(PoolBytesLeft(1000, 1000), kResourceExhausted, "more than planned");
}

TEST(EngineOptions, StepsAndLogitsHaveTheSizeOfTheDeviceUnlessTheyAreGiven) {
  EngineOptions options;
  EXPECT_EQ(options.BatchedTokens(/*on_cpu=*/true), 1024);
  EXPECT_EQ(options.BatchedTokens(/*on_cpu=*/false), 8192);
  EXPECT_EQ(options.HeadWorkspaceBytes(/*on_cpu=*/true), 64 << 20);
  EXPECT_EQ(options.HeadWorkspaceBytes(/*on_cpu=*/false), 256 << 20);
  options.max_num_seqs = 3000;  // all of them decode in one step
  EXPECT_EQ(options.BatchedTokens(/*on_cpu=*/true), 3000);
  options.max_num_batched_tokens = 7;
  options.head_workspace_bytes = 5;
  EXPECT_EQ(options.BatchedTokens(/*on_cpu=*/true), 7);
  EXPECT_EQ(options.HeadWorkspaceBytes(/*on_cpu=*/true), 5);
}

}  // namespace
}  // namespace taopd::testing
