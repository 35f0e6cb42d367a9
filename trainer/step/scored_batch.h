// Connects rollout, scoring and training of one step. Every finished rollout goes to the teacher
// immediately. The step takes the scored rollouts in prompt order, whatever the order of arrival,
// so that results do not depend on timing.
//
// Memory: one slot per rollout of the step. Threads: the engine's and the client's threads fill the
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

// The scoring of a batch's rollouts. Everything it points to must outlive every callback.
struct BatchScoring {
  TeacherClient* teacher = nullptr;
  SupportOptions support = {};
  std::string name = {};         // prefixes the ids of the requests to the teacher
  Timeline* timeline = nullptr;  // gets the spans of each rollout and of its scoring; may be null
  // Chooses the prompts that the teacher sees. If it is null, the teacher sees the prompt that the
  // rollout has for it or, if there is none, the student's.
  std::unique_ptr<TeacherViews> views = nullptr;
  // Rewards the responses. A rollout then counts as scored only when it has its advantage as well.
  // Null if the responses are not rewarded.
  std::unique_ptr<StepRewards> rewards = nullptr;
};

class ScoredBatch : public std::enable_shared_from_this<ScoredBatch> {
 public:
  // Starts generating and scoring `requests`, and returns immediately. `engine` must outlive every
  // callback (see WaitIdle); the callbacks keep the batch itself alive. The batch fails with
  // FAILED_PRECONDITION if a rollout has another policy_version than its request.
  // REQUIRES: all requests have the same policy_version.
  static std::shared_ptr<ScoredBatch> Start(RolloutEngine* engine,
                                            std::vector<RolloutRequest> requests,
                                            BatchScoring scoring);

  // Returns a batch of existing rollouts. Asks the teacher for the scores, and the source of
  // rewards for the rewards, of those that are not scored yet (scored[i] is false). `scoring` is
  // not used if all are scored.
  static std::shared_ptr<ScoredBatch> Continue(std::vector<ScoredRollout> items,
                                               std::vector<bool> scored, BatchScoring scoring);

  // Waits until rollouts [begin, end) are generated. If any rollout or score of the batch fails,
  // returns that error. Calls `on_wait` about once a second in the meantime; an error from it ends
  // the wait and is returned.
  absl::Status WaitGenerated(int64_t begin, int64_t end,
                             const std::function<absl::Status()>& on_wait) {
    return WaitFor(&ScoredBatch::generated_, begin, end, on_wait);
  }
  // Waits in the same way until rollouts [begin, end) are scored.
  absl::Status WaitScored(int64_t begin, int64_t end, const std::function<absl::Status()>& on_wait);
  // Waits until the engine has finished every rollout, successfully or not. The weights may change
  // after that. By then each finished rollout has gone to the teacher, unless the batch has failed.
  void WaitAllGenerated();
  // Waits until no callback is outstanding. The engine and the client may be destroyed after that.
  void WaitIdle();

  // Returns for each rollout whether it is scored. Scores that have arrived do not change.
  std::vector<bool> scored() const;
  // Returns OK if all rollouts are generated, even if scoring has failed; otherwise the first error
  // of the batch. REQUIRES: WaitAllGenerated has returned.
  absl::Status AllGenerated() const;

  // REQUIRES: WaitScored returned OK for it; for `rollout` alone, WaitGenerated or AllGenerated.
  const ScoredRollout& item(int64_t index) const { return items_[index]; }
  // Rollouts [begin, end). REQUIRES: WaitScored returned OK for them.
  std::vector<const ScoredRollout*> Items(int64_t begin, int64_t end) const;
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  ScoredBatch(int64_t size, BatchScoring scoring);
  void OnRollout(int64_t index, absl::StatusOr<Rollout> rollout);
  // Stores the rollout unless it has failed. Returns whether its scores are needed: a batch that
  // has failed needs none.
  bool KeepRollout(int64_t index, absl::StatusOr<Rollout> rollout);
  // Asks the teacher for the scores of this rollout and of those that have waited for it.
  void AskTeacherAfter(int64_t index);
  void AskTeacher(TeacherView view);
  void OnScores(int64_t index, absl::StatusOr<TeacherScores> reply);
  // Asks for the rewards of the rollout's group if this was its last rollout.
  void AskForRewards(int64_t index);
  void OnRewards(int64_t first, absl::StatusOr<RewardedGroup> rewarded);
  // Records that the scores or the reward of a rollout have arrived.
  void RecordArrival(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until flags [begin, end) are all set.
  absl::Status WaitFor(const std::vector<bool> ScoredBatch::*flags, int64_t begin, int64_t end,
                       const std::function<absl::Status()>& on_wait);

  const BatchScoring scoring_;
  const absl::Time start_;
  int64_t policy_version_ = kLiveWeights;  // of the requests

  // Item i is written by one callback at a time and read once it is scored.
  std::vector<ScoredRollout> items_;
  // When the teacher was asked, guarded in the same way.
  std::vector<absl::Time> asked_at_;
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
