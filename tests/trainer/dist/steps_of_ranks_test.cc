// Tests of whole steps on several ranks, which are threads of this process with a model each.
#include "tests/common/dist/rank_threads.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/dist/shares.h"

namespace taopd::testing {
namespace {

struct RanksResult {
  std::vector<std::vector<double>> losses;  // [rank][step]
  std::vector<std::vector<double>> grad_norms;
  std::vector<std::vector<at::Tensor>> weights;
};

struct RanksSetting {
  int64_t world_size = 1;
  int64_t num_shares = 0;
  int64_t num_steps = 3;
  std::string dtype = "float32";
  bool shard_gradients = false;
  TrainConfig config = TinyConfig();
};

RanksResult TrainOnRanks(const RanksSetting& setting) {
  const int64_t world = setting.world_size;
  RanksResult result;
  result.losses.resize(world);
  result.grad_norms.resize(world);
  result.weights.resize(world);
  OnRanks(world, ProcessGroupOptions(), [&](ProcessGroup& group) {
    const int64_t rank = group.rank();
    TinySetting tiny = {.config = setting.config, .dtype = setting.dtype};
    tiny.num_threads = 1;  // threads per rank
    tiny.shard.shard_gradients = setting.shard_gradients && world > 1;
    tiny.shard.layout.num_shards = world;
    tiny.shard.layout.max_bucket_elements = 4096;  // several buckets, some cut parameters
    tiny.shard.shard = rank;
    TinyTraining training(tiny);
    training.context.group = &group;
    training.context.shares = *Shares::Make(setting.num_shares, rank, world);
    for (int64_t step = 0; step < setting.num_steps; ++step) {
      const auto metrics = ByName(training.Step(step, setting.num_steps));
      result.losses[rank].push_back(metrics.at("loss/mean"));
      result.grad_norms[rank].push_back(metrics.at("loss/grad_norm"));
    }
    for (const auto& [name, parameter] : training.student()->Parameters()) {
      result.weights[rank].push_back(parameter.detach().clone());
    }
    group.Leave();
  });
  return result;
}

// Expects the same bits in the weights of all ranks of both runs.
void ExpectSameWeights(const RanksResult& a, const RanksResult& b) {
  for (const auto& weights : b.weights) {
    ASSERT_EQ(weights.size(), a.weights[0].size());
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], a.weights[0][i])) << "parameter " << i;
    }
  }
}

TEST(StepsOfRanksTest, FixedSharesGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const RanksResult one = TrainOnRanks({1, 4, 3, dtype});
    for (const int64_t world : {2, 4}) {
      const RanksResult several = TrainOnRanks({world, 4, 3, dtype});
      SCOPED_TRACE(Concat(dtype, " on ", world, " ranks"));
      ExpectSameWeights(one, several);
      EXPECT_EQ(several.grad_norms[0], one.grad_norms[0]);
    }
  }
}

// The same terms are summed in another order in float32. Sharded gradients of every micro-batch are
// sent to their owners and not kept. Ranks have different numbers of micro-batches (three ranks
// share nine sequences of different lengths).
TEST(StepsOfRanksTest, WholeAndShardedGradientsLearnWhatOneRankLearns) {
  constexpr double kRelative = 1e-5;  // the largest difference seen is 4e-7, of a norm
  std::vector<RanksSetting> settings;
  for (const int64_t world : {2, 3, 4}) settings.push_back({world, 0, 6});
  for (const int64_t world : {2, 3}) {
    for (const RecomputeChoice recompute :
         {RecomputeChoice::kNone, RecomputeChoice::kAttention, RecomputeChoice::kFull}) {
      RanksSetting sharded = {world, 0, 6};
      sharded.shard_gradients = true;
      sharded.config.trainer.recompute = recompute;
      settings.push_back(sharded);
    }
  }
  const RanksResult one = TrainOnRanks({1, 0, 6});
  for (const RanksSetting& setting : settings) {
    SCOPED_TRACE(Concat(setting.world_size, " ranks, ", setting.shard_gradients ? "sharded, " : "",
                        NameOf(setting.config.trainer.recompute)));
    const RanksResult several = TrainOnRanks(setting);
    ExpectSameWeights(several, several);  // all ranks have the same
    EXPECT_EQ(several.losses.back(), several.losses[0]);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_NEAR(several.losses[0][step], one.losses[0][step],
                  kRelative * std::abs(one.losses[0][step]));
      EXPECT_NEAR(several.grad_norms[0][step], one.grad_norms[0][step],
                  kRelative * one.grad_norms[0][step]);
    }
  }
}

// With one micro-batch on each rank, the sums are those of whole gradients bit for bit, also for
// bfloat16 weights and moments.
TEST(StepsOfRanksTest, OnePassOfShardedGradientsHasTheBitsOfWholeOnes) {
  for (const auto& [moments, master] : {std::pair{MomentsDtype::kFloat32, MasterWeights::kFloat32},
                                        {MomentsDtype::kBfloat16, MasterWeights::kFloat32},
                                        {MomentsDtype::kBfloat16, MasterWeights::kNone}}) {
    RanksSetting setting = {2, 0, 3, "bfloat16"};
    setting.config.optimizer.moments = moments;
    setting.config.optimizer.master = master;
    setting.config.trainer.micro_batch_tokens = 10'000;
    const RanksResult whole = TrainOnRanks(setting);
    setting.shard_gradients = true;
    const RanksResult sharded = TrainOnRanks(setting);
    ExpectSameWeights(whole, sharded);
    EXPECT_EQ(sharded.grad_norms, whole.grad_norms);
  }
}

// Each rank rounds its shard with the same random bits as a single rank, and an update on the host
// has the bits of one on the device, for which the CPU stands in.
TEST(StepsOfRanksTest, WithoutMastersAndOffloadedTheBitsAreTheSame) {
  RanksSetting setting = {1, 4, 3, "bfloat16"};
  setting.config.optimizer.moments = MomentsDtype::kBfloat16;
  setting.config.optimizer.master = MasterWeights::kNone;
  const RanksResult one = TrainOnRanks(setting);
  for (const int64_t world : {1, 2}) {
    for (const bool offload : {false, true}) {
      setting.world_size = world;
      setting.config.optimizer.offload = offload;
      SCOPED_TRACE(Concat(world, " ranks, offload ", offload));
      ExpectSameWeights(one, TrainOnRanks(setting));
    }
  }
}

}  // namespace
}  // namespace taopd::testing
