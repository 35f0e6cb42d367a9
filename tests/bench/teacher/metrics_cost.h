// Measures the cost of measuring requests (server/metrics/metered_engine.h) with an engine that
// does nothing.
#pragma once

namespace taopd::bench {

struct MetricsCost {
  double ns_per_score = 0;  // in addition to the time without the decorator
  double ns_per_token = 0;  // per generated token
};

MetricsCost MeasureMetricsCost();

}  // namespace taopd::bench
