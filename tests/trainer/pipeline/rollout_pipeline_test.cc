// Tests of rollouts that are generated ahead of the steps, on tiny models with real engines: which
// weights generate a step does not depend on timing, and a checkpoint at any moment loses nothing.
#include "trainer/pipeline/rollout_pipeline.h"

#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/step/rollouts/step_rollouts.h"

namespace taopd::testing {
namespace {

constexpr int64_t kSteps = 6;

TinySetting Ahead(int64_t async_steps, int64_t lora_rank = 0) {
  TinySetting setting;
  setting.lora_rank = lora_rank;
  setting.config.trainer.async_steps = async_steps;
  setting.config.trainer.total_steps = kSteps;
  setting.num_threads = 1;  // the engine and the training thread have one each
  return setting;
}

std::vector<at::Tensor> CopyOf(const Decoder& decoder) {
  std::vector<at::Tensor> copy;
  for (const auto& [name, parameter] : decoder.TrainedParameters()) {
    copy.push_back(parameter.detach().clone());
  }
  return copy;
}

// Holds scores back until they are released.
class HeldTeacher final : public TeacherClient {
 public:
  explicit HeldTeacher(TeacherClient* inner) : inner_(inner) {}
  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override {
    return inner_->Connect(timeout);
  }
  void Score(TeacherRequest request,
             std::function<void(absl::StatusOr<TeacherScores>)> done) override {
    {
      absl::MutexLock lock(&mutex_);
      if (holds_) {
        held_.emplace_back(std::move(request), std::move(done));
        return;
      }
    }
    inner_->Score(std::move(request), std::move(done));
  }
  TeacherClientStats stats() const override { return {}; }
  void Hold() {
    absl::MutexLock lock(&mutex_);
    holds_ = true;
  }
  void Release() {
    std::deque<std::pair<TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)>>> all;
    {
      absl::MutexLock lock(&mutex_);
      holds_ = false;
      all.swap(held_);
    }
    for (auto& [request, done] : all) inner_->Score(std::move(request), std::move(done));
  }

 private:
  TeacherClient* const inner_;
  absl::Mutex mutex_;
  bool holds_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::pair<TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)>>> held_
      ABSL_GUARDED_BY(mutex_);
};

// Changes rollouts on their way from the engine to the batch.
class TamperedRollouts final : public RolloutEngine {
 public:
  using Change = std::function<absl::StatusOr<Rollout>(int64_t index, Rollout rollout)>;
  TamperedRollouts(RolloutEngine* inner, Change change)
      : inner_(inner), change_(std::move(change)) {}
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override {
    inner_->Generate(std::move(requests), [this, done = std::move(done)](
                                              int64_t index, absl::StatusOr<Rollout> rollout) {
      done(index, rollout.ok() ? change_(index, *std::move(rollout)) : rollout);
    });
  }
  void CancelAll() override { inner_->CancelAll(); }

 private:
  RolloutEngine* const inner_;
  const Change change_;
};

// A run whose rollouts are generated ahead.
class AheadTraining {
 public:
  explicit AheadTraining(const TinySetting& setting)
      : training_(setting),
        held_(training_.context.teacher),
        weights_(*GenerationWeights::Make(training_.student().get())),
        engine_(*MakeRolloutEngine(*training_.context.config, weights_->decoder())),
        rollouts_(engine_.get(), [this] { return weights_->version(); }),
        pipeline_(std::make_unique<RolloutPipeline>(&training_.context, weights_.get(),
                                                    &training_.prompts(), training_.order())) {
    training_.context.rollout_engine = &rollouts_;
    training_.context.rollouts_ahead = pipeline_.get();
    training_.context.teacher = &held_;
  }
  absl::Status Start() { return pipeline_->Restart({}, {}); }
  // Trains on the prompts of the next step.
  absl::StatusOr<StepResult> Step(const PendingStep* pending = nullptr) {
    if (!is_repeated_) batch_ = training_.NextPrompts();
    auto result = TrainOneStep(training_.context, num_steps_, kLr, batch_, pending);
    is_repeated_ = !result.ok() || result->pending != nullptr;
    if (!is_repeated_) {
      losses_.push_back(ByName(*result).at("loss/mean"));
      ++num_steps_;
      position_ = {num_steps_, training_.order().epoch(), training_.order().index(), false};
    }
    return result;
  }
  // Does what a checkpoint after this step and a run that is resumed from it do with the rollouts.
  void SaveAndRestore(bool is_within_step = false) {
    const TempDir dir;
    ASSERT_OK_AND_ASSIGN(const auto steps, pipeline_->InFlight(num_steps_, is_within_step));
    num_stored_ = static_cast<int64_t>(steps.size());
    num_scored_ = 0;
    for (const StepInFlight& step : steps) num_scored_ += static_cast<int64_t>(step.scored.size());
    ASSERT_OK(WriteStepsInFlight(steps, 0, dir.File("in_flight")));
    std::vector<StepInFlight> read;
    if (std::filesystem::exists(dir.File("in_flight"))) {
      ASSERT_OK_AND_ASSIGN(
          read, ReadStepsInFlight(dir.File("in_flight"), *training_.context.config, Shares()));
    }
    PipelinePosition position = position_;
    position.is_within_step = is_within_step;
    ASSERT_OK(pipeline_->Restart(position, read));
  }

  TinyTraining& training() { return training_; }
  StepContext& context() { return training_.context; }
  RolloutPipeline& pipeline() { return *pipeline_; }
  HeldTeacher& teacher() { return held_; }
  const Decoder& student() { return *training_.student(); }
  const std::vector<double>& losses() const { return losses_; }
  int64_t num_stored() const { return num_stored_; }  // steps
  int64_t num_scored() const { return num_scored_; }  // their rollouts with scores
  const PipelinePosition& position() const { return position_; }

  static constexpr double kLr = 3e-3;

 private:
  TinyTraining training_;
  HeldTeacher held_;
  const std::unique_ptr<GenerationWeights> weights_;
  const std::unique_ptr<InferenceEngine> engine_;
  LocalRolloutEngine rollouts_;
  std::unique_ptr<RolloutPipeline> pipeline_;
  std::vector<const PromptRecord*> batch_;
  bool is_repeated_ = false;
  int64_t num_steps_ = 0;
  PipelinePosition position_;
  std::vector<double> losses_;
  int64_t num_stored_ = 0, num_scored_ = 0;
};

// A run that nothing disturbs.
struct Whole {
  explicit Whole(const TinySetting& setting) : run(setting) {
    EXPECT_OK(run.Start());
    for (int64_t step = 0; step < kSteps; ++step) EXPECT_OK(run.Step());
  }
  AheadTraining run;
};

void ExpectSame(AheadTraining& a, AheadTraining& b) {
  EXPECT_EQ(a.losses(), b.losses());
  EXPECT_TRUE(SameWeights(a.student(), b.student()));
}

// Every step is generated once more, by a decoder that has the weights or the adapters of its
// version.
TEST(RolloutPipeline, EveryStepIsGeneratedByExactlyItsVersion) {
  for (const auto& [async_steps, lora_rank] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {2, 0}, {4, 0}, {1, 4}, {2, 4}}) {
    AheadTraining run(Ahead(async_steps, lora_rank));
    ASSERT_OK(run.Start());
    std::vector<std::vector<at::Tensor>> versions = {CopyOf(run.student())};
    std::vector<StepResult> results;
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_OK_AND_ASSIGN(results.emplace_back(), run.Step());
      versions.push_back(CopyOf(run.student()));
    }
    const std::shared_ptr<Decoder> earlier = MakeTinyStudent("float32", lora_rank);
    ASSERT_OK_AND_ASSIGN(const auto engine, MakeRolloutEngine(*run.context().config, earlier));
    LocalRolloutEngine rollouts(engine.get());
    StepContext alone = run.context();
    alone.rollout_engine = &rollouts;
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t version = std::max<int64_t>(0, step - async_steps);
      SCOPED_TRACE(Concat("async_steps ", async_steps, ", step ", step));
      EXPECT_EQ(ByName(results[step]).at("policy/staleness"), step - version);
      {
        const at::NoGradGuard no_grad;
        const auto parameters = earlier->TrainedParameters();
        for (size_t i = 0; i < parameters.size(); ++i)
          at::Tensor(parameters[i].second).copy_(versions[version][i]);
      }
      std::vector<const PromptRecord*> prompts;
      for (size_t i = 0; i < results[step].prompts.size(); i += 3)
        prompts.push_back(results[step].prompts[i]);
      const auto batch = StartRollouts(alone, step, prompts);
      batch->WaitAllGenerated();
      batch->WaitIdle();
      for (size_t i = 0; i < results[step].rollouts.size(); ++i) {
        const Rollout& expected = batch->item(static_cast<int64_t>(i)).rollout;
        EXPECT_EQ(results[step].rollouts[i].response_ids, expected.response_ids) << i;
        EXPECT_EQ(results[step].rollouts[i].behavior_log_probs, expected.behavior_log_probs) << i;
        EXPECT_EQ(results[step].rollouts[i].policy_version, version) << i;
      }
    }
  }
}

TEST(RolloutPipeline, ZeroStepsAheadIsTheSynchronousRun) {
  for (const int64_t lora_rank : {0, 4}) {
    Whole ahead(Ahead(0, lora_rank));
    TinyTraining synchronous(Ahead(0, lora_rank));
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto result =
          TrainOneStep(synchronous.context, step, AheadTraining::kLr, synchronous.NextPrompts());
      ASSERT_OK(result);
      EXPECT_EQ(ByName(*result).at("loss/mean"), ahead.run.losses()[step]);
    }
    EXPECT_TRUE(SameWeights(*synchronous.student(), ahead.run.student()));
  }
}

// The base is the student's own, and the adapters are copies.
TEST(GenerationWeights, AdaptersAreCopiedAndTheBaseIsShared) {
  const std::shared_ptr<Decoder> student = MakeTinyStudent("float32", 4);
  ASSERT_OK_AND_ASSIGN(const auto weights, GenerationWeights::Make(student.get()));
  const auto base = student->Parameters(), shared = weights->decoder()->Parameters();
  ASSERT_EQ(shared.size(), base.size());
  for (size_t i = 0; i < base.size(); ++i)
    EXPECT_EQ(shared[i].second.const_data_ptr(), base[i].second.const_data_ptr()) << base[i].first;
  const auto trained = student->TrainedParameters(),
             copies = weights->decoder()->TrainedParameters();
  ASSERT_EQ(copies.size(), trained.size());
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_NE(copies[i].second.const_data_ptr(), trained[i].second.const_data_ptr());
    EXPECT_FALSE(copies[i].second.requires_grad());
  }
  const auto logits = [](Decoder& decoder) {
    const at::NoGradGuard no_grad;
    const at::Tensor hidden_TH =
        decoder.Forward(PackedBatch::FromSequences({{3, 4, 5, 6}}, decoder.device()));
    return hidden_TH.mm(decoder.lm_head().t());
  };
  weights->Take(0);
  EXPECT_TRUE(at::equal(logits(*weights->decoder()), logits(*student)));
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, matrix] : trained) at::Tensor(matrix).add_(0.1);
  }
  EXPECT_FALSE(at::equal(logits(*weights->decoder()), logits(*student)));
  weights->Take(1);
  EXPECT_TRUE(at::equal(logits(*weights->decoder()), logits(*student)));
}

TEST(RolloutPipeline, TimingAndThreadsDoNotMatter) {
  Whole whole(Ahead(2));
  TinySetting shuffled = Ahead(2);
  shuffled.shuffle_seed = 3;
  Whole other(shuffled);
  ExpectSame(other.run, whole.run);
  // Scores of a step arrive only after the next step is generated.
  AheadTraining late(Ahead(2));
  ASSERT_OK(late.Start());
  for (int64_t step = 0; step < kSteps; ++step) {
    late.teacher().Hold();
    late.context().on_wait = [&late] {
      late.teacher().Release();
      return absl::OkStatus();
    };
    ASSERT_OK(late.Step());
  }
  ExpectSame(late, whole.run);
}

TEST(RolloutPipeline, ACheckpointAfterAnyStepLosesNothing) {
  for (const int64_t async_steps : {1, 2}) {
    Whole whole(Ahead(async_steps));
    for (const bool has_scores : {true, false}) {
      AheadTraining run(Ahead(async_steps));
      ASSERT_OK(run.Start());
      for (int64_t step = 0; step < kSteps; ++step) {
        SCOPED_TRACE(Concat("async_steps ", async_steps, ", after step ", step));
        if (!has_scores) run.teacher().Hold();
        ASSERT_NO_FATAL_FAILURE(run.SaveAndRestore());
        // Rollouts of the start's weights are generated again.
        EXPECT_EQ(run.num_stored(), step == 0 ? 0 : std::min(async_steps, kSteps - step));
        if (!has_scores && step == 0) {
          EXPECT_EQ(run.num_scored(), 0);
        }
        run.teacher().Release();
        ASSERT_OK(run.Step());
      }
      ExpectSame(run, whole.run);
    }
  }
}

TEST(RolloutPipeline, ScoresOfACheckpointAreNotAskedForAgain) {
  AheadTraining run(Ahead(1));
  ASSERT_OK(run.Start());
  ASSERT_OK(run.Step());
  // Step 1 is generated by the start's weights, and step 2 by those after step 0.
  ASSERT_OK(run.pipeline().Take(1)->WaitScored(0, 18, [] { return absl::OkStatus(); }));
  run.teacher().Hold();
  ASSERT_NO_FATAL_FAILURE(run.SaveAndRestore());
  EXPECT_EQ(run.num_scored(), 18);
  EXPECT_OK(run.pipeline().Take(1)->WaitScored(
      0, 18, [] { return absl::UnavailableError("the teacher was asked"); }));
  run.teacher().Release();
  ASSERT_OK(run.Step());
}

TEST(RolloutPipeline, AnAbandonedStepKeepsItsRollouts) {
  Whole whole(Ahead(1));
  AheadTraining run(Ahead(1));
  ASSERT_OK(run.Start());
  for (int64_t step = 0; step < kSteps; ++step) {
    run.context().stop_requested = [] { return true; };
    EXPECT_ERROR(run.Step(), absl::StatusCode::kCancelled, "stop");
    run.context().stop_requested = [] { return false; };
    ASSERT_NO_FATAL_FAILURE(run.SaveAndRestore());
    ASSERT_OK(run.Step());
  }
  ExpectSame(run, whole.run);
}

TEST(RolloutPipeline, AStepThatIsLeftBetweenTwoMiniBatchesKeepsTheRolloutsOfLaterOnes) {
  Whole whole(Ahead(2));
  AheadTraining run(Ahead(2));
  ASSERT_OK(run.Start());
  run.context().stop_grace = absl::ZeroDuration();
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t updates = run.training().optimizer().num_updates();
    run.context().stop_requested = [&] {
      return run.training().optimizer().num_updates() > updates;
    };
    ASSERT_OK_AND_ASSIGN(const StepResult left, run.Step());
    ASSERT_NE(left.pending, nullptr);
    run.context().stop_requested = [] { return false; };
    ASSERT_NO_FATAL_FAILURE(run.SaveAndRestore(/*is_within_step=*/true));
    // The weights of the newest version are gone, so all later steps are stored.
    EXPECT_EQ(run.num_stored(), std::min<int64_t>(2, kSteps - step - 1));
    const TempDir dir;
    ASSERT_OK(WritePendingStep(*left.pending, 0, dir.File("pending")));
    ASSERT_OK_AND_ASSIGN(const PendingStep pending,
                         ReadPendingStep(dir.File("pending"), *run.context().config, Shares(),
                                         /*is_root=*/true));
    ASSERT_OK_AND_ASSIGN(const StepResult done, run.Step(&pending));
    EXPECT_EQ(ByName(done).at("policy/staleness"), std::min<int64_t>(2, step));
  }
  ExpectSame(run, whole.run);
}

TEST(RolloutPipeline, ARolloutOfOtherWeightsIsFound) {
  std::optional<TamperedRollouts> stale;  // must outlive the run
  AheadTraining run(Ahead(1));
  stale.emplace(run.context().rollout_engine, [](int64_t index, Rollout rollout) {
    if (index == 4 && rollout.policy_version == 1) rollout.policy_version = 0;
    return rollout;
  });
  run.context().rollout_engine = &*stale;
  ASSERT_OK(run.Start());
  ASSERT_OK(run.Step());
  ASSERT_OK(run.Step());
  EXPECT_ERROR(run.Step(), absl::StatusCode::kFailedPrecondition,
               "rollout 4 comes from the weights after step 0 instead of step 1");
  EXPECT_EQ(run.training().optimizer().num_updates(), 4) << "nothing is trained on it";
}

// The weights that have generated the others are gone, so the failed one cannot be repeated.
TEST(RolloutPipeline, WithARolloutThatFailedThereIsNoCheckpoint) {
  std::optional<TamperedRollouts> failing;  // must outlive the run
  AheadTraining run(Ahead(1));
  failing.emplace(run.context().rollout_engine,
                  [](int64_t index, Rollout rollout) -> absl::StatusOr<Rollout> {
                    if (index == 2 && rollout.policy_version == 0)
                      return ResourceExhausted("out of memory");
                    return rollout;
                  });
  ASSERT_OK(run.Start());
  ASSERT_OK(run.Step());
  EXPECT_OK(run.pipeline().InFlight(1, false));
  run.context().rollout_engine = &*failing;
  ASSERT_OK(run.pipeline().Restart({}, {}));
  // The weights of a checkpoint before the first step generate them again.
  ASSERT_OK(run.pipeline().InFlight(0, false));
  EXPECT_ERROR(run.pipeline().InFlight(1, false), absl::StatusCode::kResourceExhausted,
               "step 2, which the weights after step 0 generate: rollout 2: out of memory");
}

TEST(RolloutPipeline, RolloutsOfOtherPromptsAreRefused) {
  AheadTraining run(Ahead(1));
  ASSERT_OK(run.Start());
  ASSERT_OK(run.Step());
  ASSERT_OK_AND_ASSIGN(const auto steps, run.pipeline().InFlight(1, false));
  const PipelinePosition elsewhere = {1, 0, 1, false};
  EXPECT_ERROR(run.pipeline().Restart(elsewhere, steps), absl::StatusCode::kDataLoss,
               "of step 2 in the checkpoint does not belong to data.train's prompt");
}

// With a smaller number of steps, rollouts that are too old are generated again.
TEST(RolloutPipeline, RolloutsThatAreTooOldAreLeftOut) {
  AheadTraining two(Ahead(2)), one(Ahead(1));
  ASSERT_OK(two.Start());
  for (int64_t step = 0; step < 3; ++step) ASSERT_OK(two.Step());
  ASSERT_OK_AND_ASSIGN(const auto steps, two.pipeline().InFlight(3, false));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].policy_version(), 1);
  ASSERT_OK(one.pipeline().Restart(two.position(), steps));
  const auto batch = one.pipeline().Take(3);
  batch->WaitAllGenerated();
  batch->WaitIdle();
  EXPECT_EQ(batch->item(0).rollout.policy_version, 3);
  ASSERT_OK(two.pipeline().Restart(two.position(), steps));
  EXPECT_EQ(two.pipeline().Take(3)->item(0).rollout.policy_version, 1);
}

TEST(RolloutPipeline, DamagedFilesAreNamed) {
  AheadTraining run(Ahead(1));
  ASSERT_OK(run.Start());
  ASSERT_OK(run.Step());
  ASSERT_OK_AND_ASSIGN(auto steps, run.pipeline().InFlight(1, false));
  const TempDir dir;
  steps[0].rollouts.erase(7);
  ASSERT_OK(WriteStepsInFlight(steps, 0, dir.File("in_flight")));
  EXPECT_ERROR(ReadStepsInFlight(dir.File("in_flight"), *run.context().config, Shares()),
               absl::StatusCode::kDataLoss, "in_flight/step-000002: stored rollouts: rollout 7");
  std::filesystem::create_directory(dir.File("in_flight/other"));
  EXPECT_ERROR(ReadStepsInFlight(dir.File("in_flight"), *run.context().config, Shares()),
               absl::StatusCode::kDataLoss, "other is not the name of a step");
}

}  // namespace
}  // namespace taopd::testing
