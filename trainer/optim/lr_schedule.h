// The learning rate of each step.
#pragma once

#include <cstdint>

#include "trainer/config/run_config.h"

namespace taopd {

// Returns the learning rate of step `step` (0-based) out of total_steps. During the warm-up, step s
// < warmup_steps has lr * (s + 1) / warmup_steps. Afterwards the rate stays at lr (constant) or
// falls to lr * min_lr_ratio at the last step (linear, cosine).
double LearningRate(const OptimizerConfig& config, int64_t step, int64_t total_steps);

}  // namespace taopd
