// Tests of steps with a stop request: they are abandoned before their first update, and finished or
// left between two mini-batches after it. Whatever the moment, the resumed run has the bits of an
// undisturbed one.
#include <cmath>
#include <functional>

#include "common/base/clock.h"
#include "tests/common/dist/rank_threads.h"
#include "tests/support/files.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/dist/optimizer_shards.h"
#include "trainer/step/rollouts/pending_step.h"

namespace taopd::testing {
namespace {

constexpr double kLr = 3e-3;

// Returns a setting with six mini-batches of several micro-batches each.
TinySetting SixMiniBatches() {
  TinySetting setting;
  setting.config.trainer.mini_batch_size = 1;
  setting.config.trainer.micro_batch_tokens = 1;  // one sequence each
  setting.num_threads = 1;
  return setting;
}

// Returns all metrics except times.
std::map<std::string, double> Numbers(const StepResult& result) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : result.metrics) {
    if (!name.starts_with("time/")) numbers[name] = value;
  }
  return numbers;
}

// Returns the log-probs of all rollouts, which the probe of the guard and the dumps take.
std::vector<std::vector<float>> LogProbs(const StepResult& result) {
  std::vector<std::vector<float>> log_probs;
  for (const Rollout& rollout : result.rollouts) log_probs.push_back(rollout.behavior_log_probs);
  return log_probs;
}

// The reference with which the other runs are compared.
struct Undisturbed {
  explicit Undisturbed(const TinySetting& setting) : training(setting) {
    const StepResult result = training.Step(0, 20);
    numbers = Numbers(result);
    log_probs = LogProbs(result);
  }
  TinyTraining training;
  std::map<std::string, double> numbers;
  std::vector<std::vector<float>> log_probs;
};

void ExpectUntouched(const TinyTraining& training) {
  EXPECT_EQ(training.optimizer().num_updates(), 0);
  EXPECT_TRUE(SameWeights(*training.student(), *MakeTinyStudent()));
  EXPECT_EQ(training.optimizer().GradientNorm(), 0) << "gradients are left";
}

double LearningRateOf(const TinySetting& setting) {
  return LearningRate(setting.config.optimizer, 0, 20);
}

// Returns no rollout until it is cancelled.
class EndlessRollouts final : public RolloutEngine {
 public:
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override {
    num_open_ = static_cast<int64_t>(requests.size());
    done_ = std::move(done);
  }
  void CancelAll() override {
    for (; num_open_ > 0; --num_open_) done_(num_open_ - 1, absl::CancelledError("cancelled"));
  }

 private:
  int64_t num_open_ = 0;
  std::function<void(int64_t, absl::StatusOr<Rollout>)> done_;
};

TEST(StoppedStep, GenerationIsCancelled) {
  TinyTraining training((TinySetting()));
  RolloutEngine* const engine = training.context.rollout_engine;
  EndlessRollouts endless;
  training.context.rollout_engine = &endless;
  training.context.on_wait = [] { return absl::CancelledError("stop"); };
  const auto prompts = training.NextPrompts();
  EXPECT_ERROR(TrainOneStep(training.context, 0, kLr, prompts), kCancelled, "stop");
  ExpectUntouched(training);
  // The run continues as if nothing had happened.
  training.context.rollout_engine = engine;
  training.context.on_wait = [] { return absl::OkStatus(); };
  const auto again = TrainOneStep(training.context, 0, LearningRateOf(TinySetting()), prompts);
  ASSERT_OK(again);
  Undisturbed undisturbed((TinySetting()));
  EXPECT_EQ(Numbers(*again), undisturbed.numbers);
  EXPECT_TRUE(SameWeights(*training.student(), *undisturbed.training.student()));
}

// A mini-batch that has taken longer than those before it seems to end at once, so a slow
// machine may finish it even within a grace of zero. Nothing ends within less.
constexpr absl::Duration kNoGrace = -absl::Nanoseconds(1);

// Requests a stop at the n-th query, for every n until the step is completed.
TEST(StoppedStep, AtEveryMicroBatchTheResumedStepHasTheSameBits) {
  const TinySetting setting = SixMiniBatches();
  Undisturbed undisturbed(setting);
  int num_abandoned = 0, num_left = 0;
  for (int wish = 0;; ++wish) {
    TinyTraining training(setting);
    const auto prompts = training.NextPrompts();
    int num_asked = 0;
    training.context.stop_grace = kNoGrace;
    training.context.stop_requested = [&] { return num_asked++ >= wish; };
    const double lr = LearningRateOf(setting);
    auto result = TrainOneStep(training.context, 0, lr, prompts);
    training.context.stop_requested = [] { return false; };
    EXPECT_EQ(training.optimizer().GradientNorm(), 0) << "gradients are left";
    if (!result.ok()) {
      EXPECT_ERROR(result, kCancelled, "stop");
      ExpectUntouched(training);
      result = TrainOneStep(training.context, 0, lr, prompts);
      ++num_abandoned;
    } else if (result->pending != nullptr) {
      EXPECT_EQ(training.optimizer().num_updates(), result->pending->mini_batch);
      const TempDir dir;
      ASSERT_OK(WritePendingStep(*result->pending, 0, dir.File("pending")));
      ASSERT_OK_AND_ASSIGN(const PendingStep pending,
                           ReadPendingStep(dir.File("pending"), setting.config, Shares(), true));
      result = TrainOneStep(training.context, 0, lr, prompts, &pending);
      ++num_left;
    } else {
      break;
    }
    ASSERT_OK(result);
    EXPECT_EQ(Numbers(*result), undisturbed.numbers) << wish;
    EXPECT_TRUE(SameWeights(*training.student(), *undisturbed.training.student())) << wish;
    EXPECT_EQ(result->rollouts.size(), 18u);
    EXPECT_EQ(LogProbs(*result), undisturbed.log_probs) << wish;
  }
  EXPECT_EQ(num_abandoned, 3) << "one for each micro-batch of the first mini-batch";
  EXPECT_EQ(num_left, 15);
}

// Each process computes only one mini-batch.
TEST(StoppedStep, AStepMayBeLeftInEveryMiniBatch) {
  const TinySetting setting = SixMiniBatches();
  Undisturbed undisturbed(setting);
  TinyTraining training(setting);
  const auto prompts = training.NextPrompts();
  training.context.stop_grace = kNoGrace;
  std::shared_ptr<const PendingStep> pending;
  absl::StatusOr<StepResult> result = StepResult();
  for (int64_t mini_batch = 1; mini_batch <= 6; ++mini_batch) {
    int num_asked = 0;
    training.context.stop_requested = [&] { return num_asked++ >= 3; };
    result = TrainOneStep(training.context, 0, LearningRateOf(setting), prompts, pending.get());
    ASSERT_OK(result);
    if (mini_batch == 6) break;
    ASSERT_NE(result->pending, nullptr) << mini_batch;
    EXPECT_EQ(result->pending->mini_batch, mini_batch);
    pending = result->pending;
  }
  EXPECT_EQ(result->pending, nullptr);
  EXPECT_EQ(Numbers(*result), undisturbed.numbers);
  EXPECT_TRUE(SameWeights(*training.student(), *undisturbed.training.student()));
}

// Every query takes a second, so a mini-batch of three micro-batches takes three seconds.
TEST(StoppedStep, WhatFitsIntoTheGraceIsFinished) {
  for (const int grace_s : {14, 15}) {
    TinyTraining training(SixMiniBatches());
    ManualClock clock;
    int num_asked = 0;
    training.context.clock = &clock;
    training.context.stop_grace = absl::Seconds(grace_s);
    training.context.stop_requested = [&] {
      const bool stops = num_asked++ >= 3;  // after the first mini-batch
      if (!stops) clock.Advance(absl::Seconds(1));
      return stops;
    };
    const auto result = TrainOneStep(training.context, 0, kLr, training.NextPrompts());
    ASSERT_OK(result);
    // Five are left.
    EXPECT_EQ(result->pending == nullptr, grace_s == 15) << grace_s;
    EXPECT_EQ(training.optimizer().num_updates(), grace_s == 15 ? 6 : 1);
  }
}

TEST(StoppedStep, RolloutsOfOtherPromptsOrSettingsOrDamagedOnesAreRefused) {
  const TinySetting setting = SixMiniBatches();
  TinyTraining training(setting);
  int num_asked = 0;
  training.context.stop_grace = kNoGrace;
  training.context.stop_requested = [&] { return num_asked++ >= 4; };
  const auto left = TrainOneStep(training.context, 0, kLr, training.NextPrompts());
  ASSERT_OK(left);
  ASSERT_NE(left->pending, nullptr);
  EXPECT_ERROR(TrainOneStep(training.context, 0, kLr, training.NextPrompts(), left->pending.get()),
               kDataLoss, "does not belong to its prompt in data.train");
  const TempDir dir;
  ASSERT_OK(WritePendingStep(*left->pending, 0, dir.path()));
  const auto expect_refused = [&](auto change, const char* says) {
    TrainConfig other = setting.config;
    change(other);
    EXPECT_ERROR(ReadPendingStep(dir.path(), other, Shares(), true), kDataLoss, says);
  };
  expect_refused([](auto& other) { other.trainer.mini_batch_size = 2; },
                 "1 of 6 mini-batches are done, of 18 rollouts; the configuration has 3");
  expect_refused([](auto& other) { other.teacher.top_k = 8; },
                 "4 tokens per position; teacher.top_k and objective need 8");
  expect_refused([](auto& other) { other.objective.support = SupportChoice::kStudent; },
                 "objective.support needs 4 at each position");
  expect_refused([](auto& other) { other.objective.name = "full"; },
                 "lack the full vocabulary, which objective needs");
  EXPECT_OK(ReadPendingStep(dir.path(), setting.config, Shares(), true, {"optimizer.lr"}));
  for (const std::string changed : {"reward.baseline", "teacher.weights", "teacher_revision"}) {
    EXPECT_ERROR(
        ReadPendingStep(dir.path(), setting.config, Shares(), true, {"optimizer.lr", changed}),
        kDataLoss,
        "must end with them: rollout 3: its scores and rewards are those of another " + changed);
  }
  // The file of rank 1 alone lacks the sums.
  const TempDir torn;
  ASSERT_OK(WritePendingStep(*left->pending, 1, torn.path()));
  EXPECT_ERROR(ReadPendingStep(torn.path(), setting.config, Shares(), true), kDataLoss,
               "another version of the program");
  for (const int64_t finish : {-1, 2}) {
    PendingStep damaged = *left->pending;
    auto rollout = std::make_shared<ScoredRollout>(*damaged.rollouts.at(7));
    rollout->rollout.finish = static_cast<FinishReason>(finish);
    damaged.rollouts[7] = std::move(rollout);
    ASSERT_OK(WritePendingStep(damaged, 0, dir.path()));
    EXPECT_ERROR(ReadPendingStep(dir.path(), setting.config, Shares(), true), kDataLoss,
                 Concat("rollout 7 has the finish reason ", finish, " instead of 0 (stop)"));
  }
}

// ---- Several ranks ------------------------------------------------------------------------------

struct RankOutcome {
  std::map<std::string, double> numbers;  // metrics of rank 0 if the step was completed
  std::vector<at::Tensor> weights;        // weights of rank 0
  std::vector<int> was_left;              // one per rank
};

// Trains one step on `world` ranks with two fixed shares. It continues the step in `from` unless
// that is empty. The rank `stopped` gets a stop request at its query `wish`, and the rest of the
// step is written to `to`.
RankOutcome StepOnRanks(int64_t world, const std::string& from, int64_t stopped, int wish,
                        const std::string& to) {
  RankOutcome outcome;
  outcome.was_left.resize(world);
  OnRanks(world, ProcessGroupOptions(), [&](ProcessGroup& group) {
    TinySetting setting = SixMiniBatches();
    setting.config.rollout.n = 4;
    setting.num_threads = 1;
    setting.shard.layout.num_shards = world;
    setting.shard.layout.max_bucket_elements = 4096;
    setting.shard.shard = group.rank();
    TinyTraining training(setting);
    training.context.group = &group;
    training.context.shares = *Shares::Make(2, group.rank(), world);
    training.context.stop_grace = kNoGrace;
    int num_asked = 0;
    training.context.stop_requested = [&] {
      return group.rank() == stopped && num_asked++ >= wish;
    };
    std::optional<PendingStep> pending;
    if (!from.empty()) {
      auto read = ReadPendingStep(from + "/pending", setting.config, training.context.shares,
                                  group.is_root());
      ASSERT_OK(read);
      pending = *std::move(read);
      ASSERT_OK(ReadOptimizerShards(from + "/optimizer", training.context.optimizer));
      ASSERT_OK_AND_ASSIGN(const auto weights, SafetensorsFile::Open(from + "/weights"));
      const at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : training.student()->Parameters()) {
        const auto bytes = weights->tensors().at(name).bytes;
        std::memcpy(parameter.data_ptr(), bytes.data(), bytes.size());
      }
    }
    const auto result = TrainOneStep(training.context, 0, LearningRateOf(setting),
                                     training.NextPrompts(), pending ? &*pending : nullptr);
    ASSERT_OK(result);
    outcome.was_left[group.rank()] = result->pending != nullptr;
    if (result->pending != nullptr) {
      ASSERT_OK(WritePendingStep(*result->pending, group.rank(), to + "/pending"));
      std::filesystem::create_directories(to + "/optimizer");
      ASSERT_OK(OptimizerShardsToWrite(*training.context.optimizer, group.rank(), false)
                    .Write(to + "/optimizer"));
      std::vector<TensorToWrite> tensors;
      for (const auto& [name, parameter] : training.student()->Parameters()) {
        tensors.push_back(
            {name,
             "F32",
             parameter.sizes().vec(),
             {static_cast<const std::byte*>(parameter.const_data_ptr()), parameter.nbytes()}});
      }
      if (group.is_root()) ASSERT_OK(WriteSafetensors(to + "/weights", tensors));
    } else if (group.is_root()) {
      outcome.numbers = Numbers(*result);
      for (const auto& [name, parameter] : training.student()->Parameters())
        outcome.weights.push_back(parameter.detach().clone());
    }
    ASSERT_OK(Barrier(group));
    group.Leave();
  });
  return outcome;
}

TEST(StoppedStep, OneRanksWishLeavesTheStepOnAllAndAnyNumberGoesOn) {
  constexpr double kOtherRanks = 1e-12;  // relative; the sums over rows have another order
  const RankOutcome whole[] = {StepOnRanks(1, "", -1, 0, ""), StepOnRanks(2, "", -1, 0, "")};
  for (const int64_t before : {1, 2}) {
    for (const int64_t after : {1, 2}) {
      // The last rank stops in its second or third mini-batch.
      for (const int wish : {5, 6, 9}) {
        SCOPED_TRACE(Concat(before, " to ", after, " ranks, question ", wish));
        const TempDir dir;
        const RankOutcome left = StepOnRanks(before, "", before - 1, wish, dir.path());
        EXPECT_EQ(left.was_left, std::vector<int>(before, 1));
        const RankOutcome rest = StepOnRanks(after, dir.path(), -1, 0, "");
        const RankOutcome& same = whole[after - 1];
        ASSERT_EQ(rest.numbers.size(), same.numbers.size());
        for (const auto& [name, value] : same.numbers) {
          const double tolerance = before == after ? 0 : kOtherRanks * std::abs(value);
          EXPECT_NEAR(rest.numbers.at(name), value, tolerance) << name;
        }
        ASSERT_EQ(rest.weights.size(), same.weights.size());
        for (size_t i = 0; i < same.weights.size(); ++i)
          EXPECT_TRUE(at::equal(rest.weights[i], same.weights[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace taopd::testing
