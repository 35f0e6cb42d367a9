// Metrics for Prometheus: a sink that keeps the last value of every metric as a gauge.
//
// Threads: one thread writes the sink, while any thread may ask for its page.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/metrics/sink.h"

namespace prometheus {
class Gauge;
class Registry;
}  // namespace prometheus

namespace taopd {

// The page's Content-Type in HTTP.
inline constexpr char kPrometheusContentType[] = "text/plain; version=0.0.4; charset=utf-8";

class PrometheusSink final : public MetricSink {
 public:
  PrometheusSink();
  ~PrometheusSink() override;

  // Sets the gauge taopd_trainer_loss_grad_norm for the metric "loss/grad_norm" ('/' and '-' become
  // '_'), and the gauge taopd_trainer_step to the step. NaN and infinities are shown as such.
  // Returns INVALID_ARGUMENT if a name has characters other than letters, digits, '_', '/' and '-',
  // or if two metrics would share a gauge; all other metrics are set nevertheless.
  absl::Status Write(int64_t step, const Metrics& metrics) override;

  // Returns the page in the text exposition format 0.0.4.
  std::string Page() const;

 private:
  absl::Status Set(const std::string& name, double value);

  const std::unique_ptr<prometheus::Registry> registry_;
  std::map<std::string, prometheus::Gauge*> gauges_;    // by metric name
  std::map<std::string, std::string> metric_of_gauge_;  // by gauge name
};

}  // namespace taopd
