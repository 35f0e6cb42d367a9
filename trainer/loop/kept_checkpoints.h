// The checkpoints of a run by their steps, and which of them must not be deleted.
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "trainer/run/run_checkpoints.h"

namespace taopd {

class KeptCheckpoints {
 public:
  // `checkpoints` must outlive the object.
  explicit KeptCheckpoints(RunCheckpoints* checkpoints) : checkpoints_(*checkpoints) {}

  // Finds the newest checkpoint of at most `step` steps, and the last good one of at most
  // `good_step` steps.
  absl::Status Restore(int64_t step, int64_t good_step) {
    TAOPD_ASSIGN_OR_RETURN(newest_, checkpoints_.NewestStep(step));
    TAOPD_ASSIGN_OR_RETURN(last_good_, checkpoints_.NewestStep(good_step));
    return absl::OkStatus();
  }
  // Records the newest checkpoint, which may still be being written.
  void Add(int64_t step) { newest_before_ = std::exchange(newest_, step); }
  // Records that the newest checkpoint, that of `step`, could not be written.
  void Remove(int64_t step) {
    if (last_good_ == step) last_good_ = newest_before_;
    newest_ = newest_before_;
  }
  // Records that the run has made a step without an alarm from the newest checkpoint's weights.
  void MarkNewestGood() { last_good_ = newest_; }
  void SetBest(std::optional<int64_t> step) { best_ = step; }
  void SetNamedBest(std::optional<int64_t> step) { named_best_ = step; }
  void SetEvaluated(std::optional<int64_t> step) { evaluated_ = step; }

  // Keeps the last good, the best, the named and the evaluated checkpoint from now on. The next
  // save may delete those of an earlier call.
  void Pin() {
    std::set<int64_t> steps;
    for (const std::optional<int64_t>& step : {best_, named_best_, last_good_, evaluated_}) {
      if (step) steps.insert(*step);
    }
    checkpoints_.Pin(std::move(steps));
  }

 private:
  RunCheckpoints& checkpoints_;
  std::optional<int64_t> newest_, newest_before_;
  std::optional<int64_t> last_good_;   // the newest one that made a step without an alarm
  std::optional<int64_t> best_;        // of the best evaluation
  std::optional<int64_t> named_best_;  // named in best.json
  std::optional<int64_t> evaluated_;   // its weights are being evaluated
};

}  // namespace taopd
