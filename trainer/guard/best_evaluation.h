// Tracks the best evaluation of a run by one metric, and how long it has been the best.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace taopd {

// Not thread-safe.
class BestEvaluation {
 public:
  explicit BestEvaluation(bool smallest_is_best) : smallest_is_best_(smallest_is_best) {}

  // Records the value of the evaluation after `step` steps. Returns whether it is a new best; a
  // value equal to the best, or not a number, is not.
  bool Observe(int64_t step, double value) {
    const bool is_best =
        !std::isnan(value) && (!step_ || (smallest_is_best_ ? value < value_ : value > value_));
    num_since_best_ = is_best ? 0 : num_since_best_ + 1;
    if (!is_best) return false;
    step_ = step;
    value_ = value;
    return true;
  }

  std::optional<int64_t> step() const { return step_; }  // of the best, if there is one yet
  double value() const { return value_; }
  int64_t num_since_best() const { return num_since_best_; }  // evaluations since the best

 private:
  bool smallest_is_best_;
  std::optional<int64_t> step_;
  double value_ = 0;
  int64_t num_since_best_ = 0;
};

}  // namespace taopd
