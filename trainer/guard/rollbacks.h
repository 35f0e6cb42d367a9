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

  // Returns the record after one more roll-back.
  Rollbacks Next(double factor) const { return {count + 1, lr_factor * factor}; }
};

// A roll-back that has begun.
struct RollbackIntent {
  int64_t to_step = 0;
  Rollbacks after;
};

// Reads the roll-backs of a run that continues after `step` steps; an intent counts as described
// above. A missing file means that there are none. Returns DATA_LOSS if the file is damaged.
absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir, int64_t step = INT64_MAX);
// Replaces the file. Without `intent`, an earlier intent is removed.
absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir,
                            const std::optional<RollbackIntent>& intent = std::nullopt);

}  // namespace taopd
