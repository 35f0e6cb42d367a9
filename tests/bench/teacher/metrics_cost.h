// What it costs to measure requests (server/metrics/metered_engine.h), with an engine that does
// nothing.
#pragma once

namespace taopd::bench {

struct MetricsCost {
  double ns_per_score = 0;  // more than without the decorator
  double ns_per_token = 0;  // of a generation
};

MetricsCost MeasureMetricsCost();

}  // namespace taopd::bench
