// The destination of a run's numbers. One interface has several sinks: the console, metrics.jsonl,
// TensorBoard and Prometheus. A metric's name has the form group/name, e.g. "loss/mean" or
// "rollout/response_length_mean", and its value is a double.
//
// Threads: a sink is not thread-safe; one thread writes to it. Errors such as a full disk are
// returned and are never fatal: the caller logs them and continues.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Pairs of name and value, in the order in which they are printed. Names are unique.
using Metrics = std::vector<std::pair<std::string, double>>;

// Returns the value of a metric, or null if it is not there.
inline const double* FindMetric(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) return &value;
  }
  return nullptr;
}

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  // `step` never decreases from one call to the next. NaN and infinities are legal values; each
  // sink says how it shows them.
  virtual absl::Status Write(int64_t step, const Metrics& metrics) = 0;
};

// Writes to all of its sinks, in the order in which they were added. If a sink fails, the others
// are still written; the first error is returned.
class MetricFanout final : public MetricSink {
 public:
  void Add(std::unique_ptr<MetricSink> sink) { sinks_.push_back(std::move(sink)); }
  absl::Status Write(int64_t step, const Metrics& metrics) override {
    absl::Status first;
    for (const auto& sink : sinks_) first.Update(sink->Write(step, metrics));
    return first;
  }

 private:
  std::vector<std::unique_ptr<MetricSink>> sinks_;
};

}  // namespace taopd
