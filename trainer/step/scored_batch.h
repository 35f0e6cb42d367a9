// Connects rollout, scoring and training of one step. Every finished rollout goes to the teacher at
// once. The step takes the scored rollouts in prompt order, whatever the order of arrival, so that
// results do not depend on timing.
//
// Memory: One slot per rollout of the step. Threads: the engine's and the client's threads fill the
// batch; the training thread waits on it.
#pragma once

#include <absl/synchronization/mutex.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/reward/step_rewards.h"
#include "trainer/step/scored_rollout.h"
#include "trainer/step/support.h"
#include "trainer/step/teacher_views.h"
#include "trainer/step/timing/timeline.h"

namespace taopd {

class ScoredBatch : public std::enable_shared_from_this<ScoredBatch> {
 public:
  // Starts generating and scoring `requests`, and returns immediately. `engine` and `teacher` must
  // outlive every callback (see WaitIdle); the callbacks keep the batch itself alive. `name`
  // prefixes the ids of the requests to the teacher. A timeline, if given, gets the spans of each
  // rollout and of its scoring, and must outlive every callback as well. `views`, if given, are the
  // prompts that the teacher sees; otherwise it sees those of the requests. `rewards`, if given,
  // judge the responses; a rollout then counts as scored when it has its advantage as well. A
  // rollout that weights of another version than its request's have generated fails the batch with
  // FAILED_PRECONDITION. REQUIRES: all requests have the same policy_version.
  static std::shared_ptr<ScoredBatch> Start(RolloutEngine* engine, TeacherClient* teacher,
                                            std::vector<RolloutRequest> requests,
                                            const SupportOptions& support, const std::string& name,
                                            Timeline* timeline = nullptr,
                                            std::unique_ptr<TeacherViews> views = nullptr,
                                            std::unique_ptr<StepRewards> rewards = nullptr);

  // Returns a batch of existing rollouts, which have their scores if these will be needed.
  static std::shared_ptr<ScoredBatch> FromScored(std::vector<ScoredRollout> items);
  // Returns a batch of existing rollouts of which some have their scores (scored[i]), and asks the
  // teacher, and for the rewards, for the others. The arguments are those of Start. Without `views`
  // the teacher sees the prompts that the rollouts have for it.
  static std::shared_ptr<ScoredBatch> Continue(
      TeacherClient* teacher, std::vector<ScoredRollout> items, std::vector<bool> scored,
      const SupportOptions& support, const std::string& name, Timeline* timeline = nullptr,
      std::unique_ptr<TeacherViews> views = nullptr,
      std::unique_ptr<StepRewards> rewards = nullptr);

  // Waits until rollouts [begin, end) are generated. If any rollout or score of the batch fails,
  // returns that error. Calls `on_wait` about once a second in the meantime; an error from it ends
  // the wait and is returned.
  absl::Status WaitGenerated(int64_t begin, int64_t end,
                             const std::function<absl::Status()>& on_wait);
  // Waits in the same way until rollouts [begin, end) are scored.
  absl::Status WaitScored(int64_t begin, int64_t end, const std::function<absl::Status()>& on_wait);
  // Waits until the engine has finished every rollout, successfully or not. The weights may change
  // after that. Each finished one has then been handed to the teacher, unless the batch had failed.
  void WaitAllGenerated();
  // Waits until no callback is outstanding. The engine and the client may be destroyed after that.
  void WaitIdle();

  // Returns for each rollout whether it is scored. Scores that are there do not change.
  std::vector<bool> scored() const;
  // Returns the error of the first rollout that could not be generated, or OK if all rollouts are
  // there; errors of the teacher do not count. REQUIRES: WaitAllGenerated has returned.
  absl::Status AllGenerated() const;

  // REQUIRES: WaitScored returned OK for it; for `rollout` alone, WaitGenerated or AllGenerated.
  const ScoredRollout& item(int64_t index) const { return items_[index]; }
  // Rollouts [begin, end). REQUIRES: WaitScored returned OK for them.
  std::vector<const ScoredRollout*> Items(int64_t begin, int64_t end) const;
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  ScoredBatch(TeacherClient* teacher, const SupportOptions& support, std::string name, int64_t size,
              Timeline* timeline, std::unique_ptr<TeacherViews> views,
              std::unique_ptr<StepRewards> rewards);
  void OnRollout(int64_t index, absl::StatusOr<Rollout> rollout);
  // Stores the rollout unless it has failed. Returns whether its scores are needed, which is not so
  // in a batch that has failed.
  bool KeepRollout(int64_t index, absl::StatusOr<Rollout> rollout);
  // Asks the teacher for the scores of this rollout and of those that have waited for it.
  void AskTeacherAfter(int64_t index);
  void AskTeacher(TeacherView view);
  void OnScores(int64_t index, absl::StatusOr<TeacherScores> reply);
  // Asks for the rewards of the rollout's group if this was its last rollout.
  void AskForRewards(int64_t index);
  void OnRewards(int64_t first, absl::StatusOr<RewardedGroup> rewarded);
  // Records that the scores or the reward of a rollout have arrived.
  void RecordPart(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until flags [begin, end) are all set.
  absl::Status WaitFor(const std::vector<bool> ScoredBatch::*flags, int64_t begin, int64_t end,
                       const std::function<absl::Status()>& on_wait);

  TeacherClient* const teacher_;
  const SupportOptions support_;
  const std::string name_;
  Timeline* const timeline_;                    // may be null
  const std::unique_ptr<TeacherViews> views_;   // may be null
  const std::unique_ptr<StepRewards> rewards_;  // may be null
  const absl::Time start_;
  int64_t policy_version_ = kLiveWeights;  // of the requests

  // Item i is written by one callback at a time and read once it is scored.
  std::vector<ScoredRollout> items_;
  // Times of the requests to the teacher, guarded in the same way.
  std::vector<absl::Time> handed_over_;
  mutable absl::Mutex mutex_;
  std::vector<bool> generated_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> scored_ ABSL_GUARDED_BY(mutex_);
  // The number of parts that each rollout still lacks: the scores, and the reward.
  std::vector<int8_t> num_missing_ ABSL_GUARDED_BY(mutex_);
  int64_t num_generating_ ABSL_GUARDED_BY(mutex_);
  int64_t num_scoring_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // the first one
};

}  // namespace taopd
