#include "common/metrics/sink.h"

namespace taopd {

absl::Status MetricFanout::Write(int64_t step, const Metrics& metrics) {
  absl::Status first;
  for (const auto& sink : sinks_) first.Update(sink->Write(step, metrics));
  return first;
}

}  // namespace taopd
