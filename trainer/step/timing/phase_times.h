// Measures where a step's time goes on the training thread.
#pragma once

#include <absl/time/time.h>

#include <array>
#include <cstddef>
#include <string>

#include "common/base/clock.h"
#include "trainer/step/timing/timeline.h"

namespace taopd {

enum class Phase : size_t {
  kPack,       // the copy of the weights that generation computes from
  kRollout,    // waiting for rollouts, which are scored in the meantime
  kScoreWait,  // waiting for the scores of finished rollouts
  kForward,    // the student's layers
  kHead,       // logits, loss and their gradient
  kBackward,   // the layers' gradients, and adding them up
  kOptimizer,  // gradient norm and update
  kNumPhases
};

// Returns the metric of a phase, such as "time/forward_s".
inline const char* PhaseMetric(Phase phase) {
  static constexpr std::array<const char*, static_cast<size_t>(Phase::kNumPhases)> kNames = {
      "time/pack_s", "time/rollout_wait_s", "time/teacher_wait_s", "time/forward_s",
      "time/head_s", "time/backward_s",     "time/optimizer_s"};
  return kNames[static_cast<size_t>(phase)];
}
// Returns a name such as "forward".
inline std::string PhaseName(Phase phase) {
  const std::string metric = PhaseMetric(phase);
  return metric.substr(5, metric.size() - 7);
}

// The sums of one step. Only the training thread may use it.
class PhaseTimes {
 public:
  // `timeline`, if not null, gets every span. Both must outlive the object.
  explicit PhaseTimes(Clock* clock, Timeline* timeline = nullptr)
      : clock_(clock), timeline_(timeline) {}

  void Add(Phase phase, absl::Time start, absl::Time end) {
    sums_[static_cast<size_t>(phase)] += end - start;
    if (timeline_ != nullptr) {
      timeline_->Add(TimelineTrack::kTrainer, PhaseName(phase), start, end);
    }
  }
  absl::Duration of(Phase phase) const { return sums_[static_cast<size_t>(phase)]; }
  Clock* clock() const { return clock_; }

 private:
  Clock* clock_;
  Timeline* timeline_;
  std::array<absl::Duration, static_cast<size_t>(Phase::kNumPhases)> sums_{};
};

// Adds the time between its construction and its destruction. `times` may be null.
class PhaseTimer {
 public:
  PhaseTimer(PhaseTimes* times, Phase phase) : times_(times), phase_(phase) {}
  ~PhaseTimer() {
    if (times_ != nullptr) times_->Add(phase_, start_, times_->clock()->Now());
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  PhaseTimes* times_;
  const Phase phase_;
  const absl::Time start_ = times_ != nullptr ? times_->clock()->Now() : absl::InfinitePast();
};

}  // namespace taopd
