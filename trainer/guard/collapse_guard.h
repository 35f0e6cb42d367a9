// Watches the metrics of a run's steps for the ways in which on-policy distillation goes wrong: a
// growing tail that the objective does not see, an entropy that vanishes or explodes, responses
// that grow longer and longer, vanish or repeat themselves, and a student far from its start.
//
// The result depends only on the sequence of metrics. Not thread-safe. Does not depend on LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/metrics/sink.h"
#include "trainer/config/guard_config.h"

namespace taopd {

// A guard whose alarm is on.
struct GuardAlarm {
  std::string guard;   // "tail_ratio"
  std::string metric;  // the metric that the guard watches
  double value = 0;
  double limit = 0;  // the limit that the value exceeds (or falls below), in the metric's unit
  int64_t num_in_a_row = 0;                 // number of steps for which the alarm has lasted
  GuardAction action = GuardAction::kNone;  // kWarn until the alarm has lasted for guard.patience
};

class CollapseGuard {
 public:
  explicit CollapseGuard(const GuardConfig& config) : config_(config) {}

  // Checks the metrics of step `step`. Returns the guards whose alarm is on, in the order of their
  // declaration. A metric that is missing or not finite neither raises nor ends an alarm.
  std::vector<GuardAlarm> Observe(int64_t step, const Metrics& metrics);

  // Returns the last step at which no alarm was on, or -1 if there is none. A step's rollouts and
  // metrics are those of the weights before its update.
  int64_t last_good_step() const { return last_good_step_; }

  // Returns whether the last step asks for a pause that nobody has ended. An alarm asks only once,
  // when it has lasted for guard.patience, because the user who resumes the run has seen it.
  bool pauses() const { return pauses_; }
  // Records that the run is not paused any more.
  void EndPause() { pauses_ = false; }

  // Returns the guard's whole state as JSON, for a checkpoint. Restore returns DATA_LOSS for any
  // other text and changes nothing then.
  std::string State() const;
  absl::Status Restore(const std::string& state);

 private:
  static constexpr size_t kNumWatched = 3;
  static constexpr size_t kNumGuards = 7;
  // A guard's comparison of a step's value with its limit.
  struct Check;
  // The values of a step that are compared with those at the start of the run.
  using WatchedValues = std::array<std::optional<double>, kNumWatched>;

  // Returns the checks of a step, one per guard.
  std::vector<Check> ChecksOf(const Metrics& metrics, const WatchedValues& watched) const;
  // Adds the values to the baselines that are not complete yet.
  void AddToBaselines(const WatchedValues& watched);
  // Returns the metric's mean over the first guard.baseline_steps steps, or nullopt until they are
  // over.
  std::optional<double> Baseline(size_t watched) const;

  GuardConfig config_;
  int64_t last_good_step_ = -1;
  bool pauses_ = false;
  std::array<double, kNumWatched> baseline_sums_{};
  std::array<int64_t, kNumWatched> baseline_counts_{};
  std::array<int64_t, kNumGuards> num_in_a_row_{};
};

}  // namespace taopd
