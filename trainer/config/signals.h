// The check of what the loss of a configuration learns from: a teacher or none, a reward, rollouts
// or given responses.
#pragma once

#include "trainer/config/train_config.h"

namespace taopd {

// Returns INVALID_ARGUMENT, naming the setting, if the objective, the sections reward, teacher and
// the settings of given responses do not fit each other. REQUIRES: the objective has passed its own
// check.
absl::Status CheckSignals(const TrainConfig& config);

}  // namespace taopd
