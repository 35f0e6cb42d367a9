// The bounded meeting point of rollout, scoring and training within one step: every finished
// rollout goes to the teacher at once, and the step takes scored rollouts in prompt order, whatever
// the order of arrival, so that results do not depend on timing.
//
// Memory: one slot a rollout of the step; nothing of the next step enters before this one is done.
// Threads: engine and client threads fill it; the training thread waits on it.
#pragma once

#include <absl/synchronization/mutex.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/step/step_types.h"
#include "trainer/step/support.h"

namespace taopd {

class ScoredBatch : public std::enable_shared_from_this<ScoredBatch> {
 public:
  // Starts generating and scoring `requests`; returns at once. The batch stays alive until every
  // callback has run.
  static std::shared_ptr<ScoredBatch> Start(RolloutEngine* engine, TeacherClient* teacher,
                                            std::vector<RolloutRequest> requests,
                                            const SupportOptions& support, const std::string& name);

  // Waits until items [begin, end) are scored, or any rollout or score has failed (that status).
  // `on_wait` runs about once a second meanwhile; an error from it ends the wait with that error.
  absl::Status WaitScored(int64_t begin, int64_t end, const std::function<absl::Status()>& on_wait);
  // Waits until the engine has finished every rollout, well or not: the weights may then change.
  void WaitGenerated();
  // Waits until no callback is outstanding (before the engine or the client go away).
  void WaitIdle();

  // REQUIRES: WaitScored returned OK for it.
  const ScoredRollout& item(int64_t index) const { return items_[index]; }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  ScoredBatch(TeacherClient* teacher, const SupportOptions& support, std::string name,
              int64_t size);
  void OnRollout(int64_t index, absl::StatusOr<Rollout> rollout);
  void OnScores(int64_t index, absl::StatusOr<TeacherScores> scores);

  TeacherClient* const teacher_;
  const SupportOptions support_;
  const std::string name_;

  absl::Mutex mutex_;
  std::vector<ScoredRollout>
      items_;  // item i is written by one callback at a time, read when scored
  std::vector<bool> scored_ ABSL_GUARDED_BY(mutex_);
  int64_t num_generating_ ABSL_GUARDED_BY(mutex_);
  int64_t num_scoring_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
