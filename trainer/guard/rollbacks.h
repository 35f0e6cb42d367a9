// The roll-backs of a run, which outlive the checkpoints that they go back to:
// RUN_DIR/rollbacks.json.
//
// A roll-back is written twice: as an intent before anything changes, and as done afterwards. A
// crash in between leaves the intent, and where the run goes on decides about it: at the checkpoint
// of the intent or before, the roll-back has happened; at a later one it has not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct Rollbacks {
  int64_t count = 0;
  double lr_factor = 1;  // of the learning rate, all roll-backs together

  // What they are after one more.
  Rollbacks Next(double factor) const { return {count + 1, lr_factor * factor}; }
};

// A roll-back that has begun.
struct RollbackIntent {
  int64_t to_step = 0;
  Rollbacks after;
};

// The roll-backs of a run that goes on after `step` steps; an intent counts as described above. A
// missing file stands for none. Returns DATA_LOSS if the file is damaged.
absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir, int64_t step = INT64_MAX);
// Replaces the file. Without an intent, an earlier one is settled.
absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir,
                            const std::optional<RollbackIntent>& intent = std::nullopt);

}  // namespace taopd
