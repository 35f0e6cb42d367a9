// Metrics for Prometheus: a sink that keeps the last value of every metric as a gauge, and the text
// page of a registry. Code with its own counters and histograms can render the page of its registry
// too; it includes <prometheus/registry.h> and links prometheus-cpp::core itself.
//
// Threads: one thread writes the sink, while any thread may render the registry.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/metrics/sink.h"

namespace prometheus {
class Collectable;
class Gauge;
class Registry;
}  // namespace prometheus

namespace taopd {

// The page's Content-Type in HTTP.
inline constexpr char kPrometheusContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Returns the page of a registry in the text exposition format 0.0.4.
std::string RenderPrometheusText(const prometheus::Collectable& registry);

class PrometheusSink final : public MetricSink {
 public:
  explicit PrometheusSink(std::shared_ptr<prometheus::Registry> registry,
                          std::string prefix = "taopd_trainer_");

  // Sets the gauge <prefix>loss_grad_norm for the metric "loss/grad_norm" ('/' and '-' become '_'),
  // and the gauge <prefix>step to the step. NaN and infinities are shown as such. Returns
  // INVALID_ARGUMENT if a name has characters other than letters, digits, '_', '/' and '-', or if
  // two metrics would share a gauge; all other metrics are set nevertheless.
  absl::Status Write(int64_t step, const Metrics& metrics) override;
  absl::Status Flush() override;

 private:
  absl::Status Set(const std::string& name, double value);

  std::shared_ptr<prometheus::Registry> registry_;
  const std::string prefix_;
  std::map<std::string, prometheus::Gauge*> gauges_;    // by metric name
  std::map<std::string, std::string> metric_of_gauge_;  // by gauge name
};

}  // namespace taopd
