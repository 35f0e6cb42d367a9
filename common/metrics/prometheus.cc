#include "common/metrics/prometheus.h"

#include <absl/strings/ascii.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace taopd {

PrometheusSink::PrometheusSink() : registry_(std::make_unique<prometheus::Registry>()) {}
PrometheusSink::~PrometheusSink() = default;

absl::Status PrometheusSink::Write(int64_t step, const Metrics& metrics) {
  absl::Status first = Set("step", static_cast<double>(step));
  for (const auto& [name, value] : metrics) first.Update(Set(name, value));
  return first;
}

std::string PrometheusSink::Page() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

absl::Status PrometheusSink::Set(const std::string& name, double value) {
  const auto known = gauges_.find(name);
  if (known != gauges_.end()) {
    known->second->Set(value);
    return absl::OkStatus();
  }
  std::string gauge_name = "taopd_trainer_";
  for (const char c : name) {
    const bool separator = c == '/' || c == '-' || c == '_';
    if (!separator && !absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return InvalidArgument("metric name \"", name, "\" holds characters other than letters, ",
                             "digits, '_', '/' and '-'");
    }
    gauge_name.push_back(separator ? '_' : c);
  }
  const auto [owner, is_new] = metric_of_gauge_.emplace(gauge_name, name);
  if (!is_new) {
    return InvalidArgument("metric \"", name, "\" would share the gauge ", gauge_name,
                           " with metric \"", owner->second, "\"");
  }
  prometheus::Gauge& gauge = prometheus::BuildGauge()
                                 .Name(gauge_name)
                                 .Help("Last value of " + name + ".")
                                 .Register(*registry_)
                                 .Add({});
  gauge.Set(value);
  gauges_.emplace(name, &gauge);
  return absl::OkStatus();
}

}  // namespace taopd
