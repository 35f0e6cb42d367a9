#include "trainer/dist/optimizer_shards.h"

#include <filesystem>

#include "common/io/safetensors/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::vector<NamedParameter> StoredParameters() {
  at::manual_seed(3);
  std::vector<NamedParameter> parameters;
  // A parameter that is cut into several buckets, small ones and a bfloat16 one.
  parameters.emplace_back("model.embed_tokens.weight", at::randn({300, 33}));
  parameters.emplace_back("model.layers.0.mlp.up_proj.weight", at::randn({7, 5}));
  parameters.emplace_back("model.layers.0.input_layernorm.weight", at::randn({5}));
  parameters.emplace_back("model.norm.weight", at::randn({40, 40}).to(at::kBFloat16));
  return parameters;
}

class OptimizerShardsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<AdamW> Make(int64_t shard, int64_t num_shards,
                                     MomentsDtype moments = MomentsDtype::kFloat32,
                                     MasterWeights master = MasterWeights::kFloat32) {
    AdamWOptions options;
    options.layout.num_shards = num_shards;
    options.layout.max_bucket_elements = 2048 * num_shards;
    options.shard = shard;
    const OptimizerConfig config = {.moments = moments, .master = master};
    return std::make_unique<AdamW>(StoredParameters(), config, options);
  }
  // The value of an element, which depends on its tensor and its place.
  static double ValueOf(const std::string& name, int64_t element) {
    return static_cast<double>(element) + 1e5 * static_cast<double>(name.size());
  }
  static void Fill(AdamW* optimizer) {
    for (AdamW::StateSlice& slice : optimizer->State()) {
      const auto first = static_cast<double>(slice.offset);
      slice.values.copy_(at::arange(slice.values.numel(), at::kDouble) + first +
                         ValueOf(slice.name, 0));
    }
    optimizer->CompleteState(17, /*has_masters=*/true, /*has_averages=*/true);
  }
  static void ExpectFilled(const AdamW& optimizer) {
    for (const AdamW::StateSlice& slice : optimizer.State()) {
      for (int64_t i = 0; i < slice.values.numel(); i += 131) {
        ASSERT_EQ(slice.values[i].item<double>(), ValueOf(slice.name, slice.offset + i))
            << slice.name << " " << slice.offset + i;
      }
    }
    EXPECT_EQ(optimizer.num_updates(), 17);
  }
  void WriteAll(int64_t num_shards) { WriteAll(num_shards, dir_, MasterWeights::kFloat32); }
  static void WriteAll(int64_t num_shards, const TempDir& dir, MasterWeights master) {
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      auto optimizer = Make(shard, num_shards, MomentsDtype::kFloat32, master);
      Fill(optimizer.get());
      ASSERT_OK(OptimizerShardsToWrite(*optimizer, shard, /*copies=*/false).Write(dir.path()));
    }
  }
  TempDir dir_;
};

TEST_F(OptimizerShardsTest, AnyNumberOfRanksReadsWhatAnyNumberWrote) {
  for (const int64_t writers : {1, 2, 3}) {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
    WriteAll(writers);
    for (const int64_t readers : {1, 2, 4}) {
      for (int64_t shard = 0; shard < readers; ++shard) {
        auto optimizer = Make(shard, readers);
        SCOPED_TRACE(Concat(writers, " writers, ", readers, " readers"));
        ASSERT_OK(ReadOptimizerShards(dir_.path(), optimizer.get()));
        ExpectFilled(*optimizer);
      }
    }
  }
}

TEST_F(OptimizerShardsTest, MomentsMayBeBFloat16) {
  for (int64_t shard = 0; shard < 2; ++shard) {
    auto optimizer = Make(shard, 2, MomentsDtype::kBfloat16);
    for (AdamW::StateSlice& slice : optimizer->State()) {
      slice.values.copy_((at::arange(slice.values.numel()) + slice.offset).remainder(128));
    }
    ASSERT_OK(OptimizerShardsToWrite(*optimizer, shard, /*copies=*/false).Write(dir_.path()));
  }
  for (const MomentsDtype moments : {MomentsDtype::kBfloat16, MomentsDtype::kFloat32}) {
    auto optimizer = Make(0, 1, moments);
    ASSERT_OK(ReadOptimizerShards(dir_.path(), optimizer.get()));
    for (const AdamW::StateSlice& slice : optimizer->State()) {
      const at::Tensor expected = at::arange(slice.values.numel()).remainder(128);
      EXPECT_TRUE(at::equal(slice.values.to(at::kLong), expected)) << slice.name;
    }
  }
}

TEST_F(OptimizerShardsTest, MastersAreDroppedAndMade) {
  WriteAll(2);
  auto without = Make(0, 1, MomentsDtype::kFloat32, MasterWeights::kNone);
  ASSERT_OK(ReadOptimizerShards(dir_.path(), without.get()));
  ExpectFilled(*without);
  TempDir other;
  WriteAll(2, other, MasterWeights::kNone);
  auto with_master = Make(0, 1);
  Fill(with_master.get());
  ASSERT_OK(ReadOptimizerShards(other.path(), with_master.get()));
  bool has_master = false;
  for (const AdamW::StateSlice& slice : with_master->State()) {
    if (!slice.name.starts_with("master.")) continue;
    has_master = true;
    EXPECT_TRUE(at::equal(slice.values.to(at::kBFloat16), StoredParameters()[3].second.view({-1})));
  }
  EXPECT_TRUE(has_master);
}

TEST_F(OptimizerShardsTest, AMissingShardIsDataLoss) {
  WriteAll(2);
  std::filesystem::path last;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().filename().string().starts_with("shard-00001")) last = entry.path();
  }
  std::filesystem::remove(last);
  auto optimizer = Make(0, 1);
  EXPECT_ERROR(ReadOptimizerShards(dir_.path(), optimizer.get()), kDataLoss, "exp_avg");
  EXPECT_EQ(optimizer->num_updates(), 0);
  EXPECT_FALSE(ReadOptimizerShards(dir_.File("nowhere"), optimizer.get()).ok());
}

TEST_F(OptimizerShardsTest, ForeignFilesAreDataLoss) {
  const auto expect = [&](const std::vector<int64_t>& shape,
                          const std::map<std::string, std::string>& metadata, const char* problem) {
    const std::vector<float> values(6);
    ASSERT_OK(WriteSafetensors(dir_.File("shard-x.safetensors"),
                               {{"exp_avg.w", "F32", shape, std::as_bytes(std::span(values))}},
                               metadata));
    auto optimizer = Make(0, 1);
    EXPECT_ERROR(ReadOptimizerShards(dir_.path(), optimizer.get()), kDataLoss, problem);
  };
  const char* place = R"({"exp_avg.w": {"saved_offsets": [0]}})";
  const char* negative = R"({"exp_avg.w": {"saved_offsets": [-1]}})";
  expect({6}, {{"DCP_SHARDING_INFO", place}}, "no num_updates");
  expect({6}, {{"num_updates", "1"}}, "lacks the place of tensor exp_avg.w");
  expect({6}, {{"num_updates", "1"}, {"DCP_SHARDING_INFO", "[}"}}, "lacks the place");
  expect({6}, {{"num_updates", "1"}, {"DCP_SHARDING_INFO", negative}}, "lacks the place");
  expect({2, 3}, {{"num_updates", "1"}, {"DCP_SHARDING_INFO", place}}, "not one-dimensional");
  expect({6}, {{"num_updates", "1"}, {"DCP_SHARDING_INFO", place}}, "is missing");
}

}  // namespace
}  // namespace taopd::testing
