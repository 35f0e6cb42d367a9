// The mean time of a run's steps, from the times that they report.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "common/metrics/sink.h"

namespace taopd {

// Not thread-safe.
class StepTime {
 public:
  // Adds time/step_s, which counts a step, time/save_s and time/evaluation_s, if they are there.
  void Add(const Metrics& metrics) {
    if (FindMetric(metrics, "time/step_s") != nullptr) ++num_steps_;
    for (const char* name : {"time/step_s", "time/save_s", "time/evaluation_s"}) {
      if (const double* const seconds = FindMetric(metrics, name))
        total_ += absl::Seconds(*seconds);
    }
  }
  int64_t num_steps() const { return num_steps_; }
  // REQUIRES: num_steps() > 0.
  absl::Duration Mean() const { return total_ / num_steps_; }

 private:
  absl::Duration total_;
  int64_t num_steps_ = 0;
};

}  // namespace taopd
