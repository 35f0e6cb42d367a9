// Where a run's numbers go. One interface, several sinks: console, metrics.jsonl, TensorBoard,
// Prometheus. Names are field/what ("loss/mean", "rollout/response_length_mean"), values doubles.
//
// Threads: one thread writes a sink. Errors (a full disk) are returned, never fatal: the caller
// logs them and goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

using Metrics = std::vector<std::pair<std::string, double>>;  // in print order; names unique

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  // `step` rises. Non-finite values are kept (JSONL writes them as null and counts them).
  virtual absl::Status Write(int64_t step, const Metrics& metrics) = 0;
  // A line of text beside the numbers: sample generations, events.
  virtual absl::Status WriteText(int64_t step, const std::string& name,
                                 const std::string& text) = 0;
  virtual absl::Status Flush() = 0;
};

// Writes to all; the first error is returned after all were tried.
class MetricFanout final : public MetricSink {
 public:
  void Add(std::unique_ptr<MetricSink> sink) { sinks_.push_back(std::move(sink)); }
  absl::Status Write(int64_t step, const Metrics& metrics) override;
  absl::Status WriteText(int64_t step, const std::string& name, const std::string& text) override;
  absl::Status Flush() override;

 private:
  std::vector<std::unique_ptr<MetricSink>> sinks_;
};

}  // namespace taopd
