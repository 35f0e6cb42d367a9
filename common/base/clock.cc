#include "common/base/clock.h"

#include <absl/time/clock.h>

namespace taopd {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void SleepFor(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;  // never destroyed: threads may outlive static objects
  return clock;
}

absl::Time ManualClock::Now() {
  absl::MutexLock lock(&mutex_);
  return now_;
}

void ManualClock::Advance(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  now_ += duration;
}

}  // namespace taopd
