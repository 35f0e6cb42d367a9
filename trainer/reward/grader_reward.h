// Rewards from a grader of this process: 1 for a right response, else 0. A response to a row
// without an answer is never right. Reward calls `done` before it returns.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <utility>

#include "trainer/config/reward_config.h"
#include "trainer/grading/grader.h"
#include "trainer/reward/reward_source.h"

namespace taopd {

class GraderReward final : public RewardSource {
 public:
  // Returns INVALID_ARGUMENT if the grader cannot be made. REQUIRES: config.grader is not empty.
  static absl::StatusOr<std::unique_ptr<RewardSource>> Make(const RewardConfig& config);

  // With `require_stop`, a truncated response is wrong.
  GraderReward(std::unique_ptr<grading::Grader> grader, bool require_stop)
      : grader_(std::move(grader)), require_stop_(require_stop) {}
  absl::Status Connect(absl::Duration) override { return absl::OkStatus(); }
  void Reward(std::vector<RewardSample> samples,
              std::function<void(absl::StatusOr<std::vector<double>>)> done) override;
  RewardStats stats() const override;

 private:
  const std::unique_ptr<grading::Grader> grader_;
  const bool require_stop_;
  mutable absl::Mutex mutex_;
  RewardStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
