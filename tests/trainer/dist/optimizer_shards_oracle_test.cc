// PyTorch's own reader joins the shards to the tensors that one process would have saved. The test
// needs the Python of TAOPD_ORACLE_PYTHON (tests/run -L oracle installs it).
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "trainer/dist/optimizer_shards.h"

namespace taopd::testing {
namespace {

std::vector<NamedParameter> OracleParameters() {
  at::manual_seed(3);
  return {{"model.embed_tokens.weight", at::randn({300, 33})},
          {"model.layers.0.mlp.up_proj.weight", at::randn({7, 5}).to(at::kBFloat16)},
          {"model.norm.weight", at::randn({5})}};
}

std::unique_ptr<AdamW> OracleOptimizer(int64_t shard, int64_t num_shards) {
  AdamWOptions options;
  options.layout.num_shards = num_shards;
  options.layout.max_bucket_elements = 2048 * num_shards;
  options.shard = shard;
  auto optimizer = std::make_unique<AdamW>(OracleParameters(), OptimizerConfig(), options);
  for (AdamW::StateSlice& slice : optimizer->State()) {
    if (slice.name.starts_with("master.")) continue;
    slice.values.copy_(at::arange(slice.values.numel()) + static_cast<double>(slice.offset));
  }
  return optimizer;
}

TEST(OptimizerShardsOracle, TorchReadsTheShards) {
  const char* python = std::getenv("TAOPD_ORACLE_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TAOPD_ORACLE_PYTHON names no Python with PyTorch";
  const TempDir dir;
  ASSERT_OK(
      OracleOptimizer(0, 1)->StateToSave(/*copies=*/false).Write(dir.File("expected.safetensors")));
  for (const int64_t num_shards : {2, 3}) {
    const std::string shards_dir = dir.File(Concat("shards-", num_shards));
    std::filesystem::create_directory(shards_dir);
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      ASSERT_OK(OptimizerShardsToWrite(*OracleOptimizer(shard, num_shards), shard, /*copies=*/false)
                    .Write(shards_dir));
    }
    std::string output;
    EXPECT_EQ(RunProgram({python, SourcePath("tests/trainer/dist/read_shards.py"), shards_dir,
                          dir.File("expected.safetensors")},
                         dir.File("python.log"), &output, absl::Seconds(180)),
              0)
        << output;
  }
}

}  // namespace
}  // namespace taopd::testing
