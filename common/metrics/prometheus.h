// Prometheus: a sink that keeps the last value of every metric as a gauge, and the text page of a
// registry, which server code with counters and histograms of its own uses too (it then includes
// <prometheus/registry.h> and links prometheus-cpp::core).
//
// Threads: one thread writes the sink; any thread may render the registry meanwhile.
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

// What HTTP answers as the page's Content-Type.
inline constexpr char kPrometheusContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// The page: text exposition format 0.0.4.
std::string RenderPrometheusText(const prometheus::Collectable& registry);

class PrometheusSink final : public MetricSink {
 public:
  explicit PrometheusSink(std::shared_ptr<prometheus::Registry> registry,
                          std::string prefix = "taopd_trainer_");

  // "loss/grad_norm" sets the gauge <prefix>loss_grad_norm ('/' and '-' become '_'), and
  // <prefix>step says the last step. NaN and infinities are shown as such. INVALID_ARGUMENT for a
  // name with other characters than letters, digits, '_', '/' and '-', or one that two metrics
  // would share; the other metrics are set all the same.
  absl::Status Write(int64_t step, const Metrics& metrics) override;
  // Prometheus holds numbers only: texts are for the other sinks.
  absl::Status WriteText(int64_t step, const std::string& name, const std::string& text) override;
  absl::Status Flush() override;

 private:
  absl::Status Set(const std::string& name, double value);

  std::shared_ptr<prometheus::Registry> registry_;
  const std::string prefix_;
  std::map<std::string, prometheus::Gauge*> gauges_;    // by metric name
  std::map<std::string, std::string> metric_of_gauge_;  // by gauge name
};

}  // namespace taopd
