#include "trainer/control/liveness.h"

#include <utility>

namespace taopd {

Liveness::Liveness(absl::Duration stall_timeout, std::function<Activity()> activity, Clock* clock)
    : stall_timeout_(stall_timeout),
      activity_(std::move(activity)),
      clock_(clock),
      seen_at_(clock->Now()) {}

absl::Status Liveness::Check() {
  Activity now = activity_();  // it takes locks of its own
  absl::MutexLock lock(&mutex_);
  if (!now || now != seen_) {
    seen_ = std::move(now);
    seen_at_ = clock_->Now();
    return absl::OkStatus();
  }
  const absl::Duration age = clock_->Now() - seen_at_;
  if (stall_timeout_ == absl::ZeroDuration() || age <= stall_timeout_) return absl::OkStatus();
  return Unavailable("the run has made no progress for ", absl::ToInt64Seconds(age),
                     " s, more than trainer.stall_timeout_s ",
                     absl::ToDoubleSeconds(stall_timeout_));
}

}  // namespace taopd
