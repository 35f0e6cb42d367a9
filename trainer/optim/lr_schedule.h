// Learning rate by step.
#pragma once

#include <cstdint>

#include "trainer/run_config.h"

namespace taopd {

// Of step `step` (0-based) out of total_steps. Linear warm-up: step s < warmup_steps has
// lr * (s + 1) / warmup_steps. Then constant, or linear or cosine from lr at the end of the warm-up
// to lr * min_lr_ratio at the last step.
double LearningRate(const OptimizerConfig& config, int64_t step, int64_t total_steps);

}  // namespace taopd
