// Detects whether a run still makes progress. A check compares what the run has done with what it
// had done at earlier checks, so a stall is noticed late by at most the time between two checks.
// Call Check about once a minute or more often. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace taopd {

class Liveness {
 public:
  // Counts and times of a run. At least one of them changes with each sign of progress. It is
  // nullopt while the run waits for a person.
  using Activity = std::optional<std::vector<int64_t>>;

  // `activity` is called by Check and must be thread-safe. `stall_timeout` 0 means no limit.
  Liveness(absl::Duration stall_timeout, std::function<Activity()> activity,
           Clock* clock = Clock::Real());

  // Returns UNAVAILABLE if the activity has been the same for longer than `stall_timeout`.
  absl::Status Check();

 private:
  const absl::Duration stall_timeout_;
  const std::function<Activity()> activity_;
  Clock* const clock_;
  absl::Mutex mutex_;
  Activity seen_ ABSL_GUARDED_BY(mutex_);
  absl::Time seen_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
