// The record of a run's roll-backs, RUN_DIR/rollbacks.json. It outlives the checkpoints to which
// the run went back.
//
// A roll-back is written twice: as an intent before anything changes, and as done afterwards. If a
// crash in between leaves the intent, the step at which the run continues decides: at or before the
// intent's checkpoint, the roll-back has happened; after it, it has not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct Rollbacks {
  int64_t count = 0;
  double lr_factor = 1;  // factor of the learning rate, over all roll-backs
  // The latest roll-back: the step it went back to, and the position in the data (EpochOrder) after
  // the prompts of the steps that it undid. -1: there is none.
  int64_t to_step = -1;
  int64_t epoch = 0;
  int64_t epoch_index = 0;

  // Returns the record after one more roll-back, by a run at that position in the data. Its to_step
  // is not known yet.
  Rollbacks Next(double factor, int64_t at_epoch, int64_t at_index) const {
    return {count + 1, lr_factor * factor, -1, at_epoch, at_index};
  }
  // Returns whether a run that is resumed at `step` must skip to that position: its checkpoint is
  // not later than the step to which the run went back.
  bool SkipsAt(int64_t step) const { return step <= to_step; }
};

// Reads the roll-backs of a run that continues after `step` steps; an intent counts as described
// above. A missing file means that there are none. Returns DATA_LOSS if the file is damaged.
absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir, int64_t step = INT64_MAX);
// Replaces the file. `intent` is the record after a roll-back that has begun, to intent->to_step;
// without it, an earlier intent is removed.
absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir,
                            const std::optional<Rollbacks>& intent = std::nullopt);

}  // namespace taopd
