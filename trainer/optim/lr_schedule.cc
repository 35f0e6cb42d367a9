#include "trainer/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace taopd {

double LearningRate(const OptimizerConfig& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == LrSchedule::kConstant) return config.lr;
  const int64_t decay_steps = std::max<int64_t>(1, total_steps - 1 - config.warmup_steps);
  const double progress = std::min(
      1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(decay_steps));
  const double remaining = config.schedule == LrSchedule::kLinear
                               ? 1.0 - progress
                               : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * remaining);
}

}  // namespace taopd
