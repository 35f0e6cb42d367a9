// Runs of tiny models whose rollouts are generated ahead of the steps, for tests of the pipeline.
#pragma once

#include <absl/synchronization/mutex.h>

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/pipeline/generation_weights.h"
#include "trainer/pipeline/rollout_pipeline.h"
#include "trainer/step/train_step.h"

namespace taopd::testing {

inline constexpr int64_t kSteps = 6;

inline TinySetting Ahead(int64_t async_steps, int64_t lora_rank = 0) {
  TinySetting setting = {.lora_rank = lora_rank};
  setting.config.trainer.async_steps = async_steps;
  setting.config.trainer.total_steps = kSteps;
  setting.num_threads = 1;  // the engine and the training thread have one each
  return setting;
}

inline std::vector<at::Tensor> CopyOf(const Decoder& decoder) {
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
  void Score(TeacherRequest request, Done done) override {
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
    std::deque<std::pair<TeacherRequest, Done>> all;
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
  std::deque<std::pair<TeacherRequest, Done>> held_ ABSL_GUARDED_BY(mutex_);
};

// A teacher whose weights follow the student's: it notes the version that answers each request, and
// answers on a thread of its own.
class FollowingTeacher final : public TeacherClient {
 public:
  explicit FollowingTeacher(TeacherClient* inner) : inner_(inner), thread_([this] { Answer(); }) {}
  ~FollowingTeacher() override {
    {
      absl::MutexLock lock(&mutex_);
      ends_ = true;
    }
    thread_.join();
  }
  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override {
    return inner_->Connect(timeout);
  }
  void Score(TeacherRequest request, Done done) override {
    absl::MutexLock lock(&mutex_);
    ++num_open_;
    waiting_.emplace_back(std::move(request), std::move(done));
  }
  TeacherClientStats stats() const override { return {}; }
  absl::Status Update(int64_t version) {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(num_open_, 0) << "requests are open while the weights change to " << version;
    version_ = version;
    return absl::OkStatus();
  }
  // The versions that have answered, by the beginning of the requests' ids: "step-3-".
  std::set<int64_t> versions_of(const std::string& prefix) const {
    absl::MutexLock lock(&mutex_);
    std::set<int64_t> versions;
    for (const auto& [id, version] : answered_)
      if (id.starts_with(prefix)) versions.insert(version);
    return versions;
  }

 private:
  void Answer() {
    while (true) {
      std::pair<TeacherRequest, Done> next;
      {
        absl::MutexLock lock(&mutex_);
        const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return ends_ || !waiting_.empty();
        };
        mutex_.Await(absl::Condition(&has_work));
        if (waiting_.empty()) return;
        next = std::move(waiting_.back());  // the newest first
        waiting_.pop_back();
        answered_.emplace_back(next.first.request_id, version_);
      }
      inner_->Score(std::move(next.first),
                    [this, done = std::move(next.second)](absl::StatusOr<TeacherScores> scores) {
                      {
                        absl::MutexLock lock(&mutex_);
                        --num_open_;
                      }
                      done(std::move(scores));
                    });
    }
  }

  TeacherClient* const inner_;
  mutable absl::Mutex mutex_;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<TeacherRequest, Done>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, int64_t>> answered_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses all of the above
};

// A run whose rollouts are generated ahead.
class AheadTraining {
 public:
  explicit AheadTraining(const TinySetting& setting, bool teacher_follows = false)
      : training_(setting),
        held_(training_.context.teacher),
        following_(&held_),
        weights_(*GenerationWeights::Make(training_.student().get())),
        engine_(*MakeRolloutEngine(*training_.context.config, weights_->decoder())),
        rollouts_(engine_.get(), [this] { return weights_->version(); }),
        pipeline_(std::make_unique<RolloutPipeline>(&training_.context, weights_.get(),
                                                    &training_.prompts(), training_.order(),
                                                    UpdateOf(teacher_follows))) {
    training_.context.rollout_engine = &rollouts_;
    training_.context.rollouts_ahead = pipeline_.get();
    training_.context.teacher = teacher_follows ? static_cast<TeacherClient*>(&following_)
                                                : static_cast<TeacherClient*>(&held_);
  }
  // Starts the run, and trains for some steps.
  absl::Status Start(int64_t num_steps = 0) {
    TAOPD_RETURN_IF_ERROR(pipeline_->Restart({}, {}));
    for (; num_steps > 0; --num_steps) TAOPD_RETURN_IF_ERROR(Step().status());
    return absl::OkStatus();
  }
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
  // Does what a checkpoint after this step does with the rollouts, and a run that is resumed from
  // it with changes of these settings.
  void SaveAndRestore(bool is_within_step = false, const std::vector<std::string>& changed = {}) {
    const TempDir dir;
    ASSERT_OK_AND_ASSIGN(const auto steps, pipeline_->InFlight(num_steps_, is_within_step));
    num_stored_ = static_cast<int64_t>(steps.size());
    num_scored_ = 0;
    for (const StepInFlight& step : steps) num_scored_ += static_cast<int64_t>(step.scored.size());
    ASSERT_OK(WriteStepsInFlight(steps, 0, dir.File("in_flight")));
    std::vector<StepInFlight> read;
    if (std::filesystem::exists(dir.File("in_flight"))) {
      ASSERT_OK_AND_ASSIGN(read, ReadStepsInFlight(dir.File("in_flight"), *training_.context.config,
                                                   Shares(), changed));
    }
    PipelinePosition position = position_;
    position.is_within_step = is_within_step;
    ASSERT_OK(pipeline_->Restart(position, read));
  }

  TinyTraining& training() { return training_; }
  StepContext& context() { return training_.context; }
  RolloutPipeline& pipeline() { return *pipeline_; }
  HeldTeacher& teacher() { return held_; }
  const FollowingTeacher& following() const { return following_; }
  const Decoder& student() { return *training_.student(); }
  const std::vector<double>& losses() const { return losses_; }
  int64_t num_stored() const { return num_stored_; }  // steps
  int64_t num_scored() const { return num_scored_; }  // their rollouts with scores
  const PipelinePosition& position() const { return position_; }

  static constexpr double kLr = 3e-3;

 private:
  RolloutPipeline::TeacherUpdate UpdateOf(bool teacher_follows) {
    if (!teacher_follows) return nullptr;
    return [this](int64_t num_steps) { return following_.Update(num_steps); };
  }

  TinyTraining training_;
  HeldTeacher held_;
  FollowingTeacher following_;
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
  explicit Whole(const TinySetting& setting) : run(setting) { EXPECT_OK(run.Start(kSteps)); }
  AheadTraining run;
};

inline void ExpectSame(AheadTraining& a, AheadTraining& b) {
  EXPECT_EQ(a.losses(), b.losses());
  EXPECT_TRUE(SameWeights(a.student(), b.student()));
}

}  // namespace taopd::testing
