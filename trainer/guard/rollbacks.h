// The roll-backs of a run, which outlive the checkpoints that they go back to: RUN_DIR/rollbacks.json.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct Rollbacks {
  int64_t count = 0;
  double lr_factor = 1;  // of the learning rate, all roll-backs together
};

// A missing file stands for none. Returns DATA_LOSS if the file is damaged.
absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir);
absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir);

}  // namespace taopd
