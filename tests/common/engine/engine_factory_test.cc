#include "common/engine/engine_factory.h"

#include "common/memory/engine_plan.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/support/failing_tensors.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(LoadEngine, ServesASavedModel) {
  TempDir dir;
  ModelConfig config = SmallConfig();
  config.eos_token_ids = {7};
  const auto decoder = MakeTiny(config);
  ASSERT_OK(SaveDecoder(*decoder, dir.File("model")));
  ASSERT_OK_AND_ASSIGN(const LoadedEngine loaded,
                       LoadEngine(dir.File("model"), "auto", "cpu", 2, EngineOptions()));
  ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
  EXPECT_EQ(loaded.revision, revision);
  EXPECT_EQ(loaded.dtype, "float32");
  EXPECT_EQ(loaded.device, "cpu");
  EXPECT_EQ(loaded.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(loaded.num_parameters, config.NumParameters());
  EXPECT_THAT(loaded.eos_token_ids, ElementsAre(7));
  EXPECT_EQ(loaded.engine->limits().vocab_size, 61);
  EXPECT_EQ(loaded.engine->limits().max_model_len, 64);
  EXPECT_OK(RunAll(loaded.engine.get(), {Scoring({1, 2, 3}, 4)})[0]);
  ASSERT_OK_AND_ASSIGN(const LoadedEngine half,
                       LoadEngine(dir.File("model"), "bfloat16", "cpu", 0, EngineOptions()));
  EXPECT_EQ(half.dtype, "bfloat16");
  EXPECT_NE(half.revision, revision);
}

TEST(LoadEngine, NamesWhatIsWrong) {
  TempDir dir;
  ASSERT_OK(SaveDecoder(*MakeTiny(), dir.File("model")));
  const absl::Status absent =
      LoadEngine(dir.File("absent"), "auto", "cpu", 0, EngineOptions()).status();
  EXPECT_ERROR(absent, kNotFound, "config.json");
  EXPECT_EQ(NumMentions(absent, dir.File("absent")), 1) << absent;
  EXPECT_ERROR(LoadEngine(dir.File("model"), "auto", "cpu", -1, EngineOptions()), kInvalidArgument,
               "num_threads -1");
  EXPECT_ERROR(LoadEngine(dir.File("model"), "float7", "cpu", 0, EngineOptions()), kInvalidArgument,
               "float7");
  EXPECT_ERROR(LoadEngine(dir.File("model"), "auto", "cpu", 0, {.max_model_len = 1000}),
               kInvalidArgument, "max_position_embeddings 64");
}

TEST(LoadEngine, TakesThePoolFromThePlan) {
  TempDir dir;
  ASSERT_OK(SaveDecoder(*MakeTiny(), dir.File("model")));
  EngineOptions options = {.max_num_seqs = 5, .kv_cache_bytes = kAutoKvCache};
  ASSERT_OK_AND_ASSIGN(const LoadedEngine loaded,
                       LoadEngine(dir.File("model"), "auto", "cpu", 0, options));
  EXPECT_TRUE(loaded.engine->limits().can_generate);
  EXPECT_EQ(loaded.engine->limits().max_num_seqs, 5);
  EXPECT_EQ(loaded.engine->limits().max_generation_len, 64);
  options.memory.cpu_memory_limit_bytes = 1 << 20;
  EXPECT_ERROR(LoadEngine(dir.File("model"), "auto", "cpu", 0, options), kResourceExhausted,
               "(cpu_memory_limit)");
}

TEST(LoadEngine, TellsThatNoMemoryIsLeft) {
  TempDir dir;
  ASSERT_OK(SaveDecoder(*MakeTiny(), dir.File("model")));
  const auto load = [&] {
    return LoadEngine(dir.File("model"), "bfloat16", "cpu", 0, EngineOptions()).status();
  };
  ASSERT_OK(load());  // checks the kernels, once per process
  // Each tensor in turn finds no memory: those of the weights, then those of their packed copies.
  absl::Status status;
  int64_t num_left = 0;
  do {
    const FailingTensors failing(num_left++);
    status = load();
    if (!status.ok()) EXPECT_ERROR(status, kResourceExhausted, "out of memory");
  } while (!status.ok());
  EXPECT_GT(num_left, 10);
}

}  // namespace
}  // namespace taopd::testing
