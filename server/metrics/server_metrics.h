// What GET /metrics shows. The protocols record request counts and latencies; the engine's numbers
// are read when the text is made. Queue lengths and token counts also appear under vLLM's names,
// for dashboards and autoscalers that were made for vLLM.
//
// Thread-safe. All label values come from fixed sets, so that a client cannot create new series.
#pragma once

#include <absl/time/time.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "server/serving/serving_state.h"

namespace taopd {

class ServerMetrics {
 public:
  ServerMetrics();

  // `method` is "grpc/Score", "POST /v1/completions", ...; `code` is the name of a gRPC code or an
  // HTTP status.
  void RecordRequest(const std::string& method, const std::string& code, absl::Duration latency);

  // The metrics in Prometheus's text format 0.0.4.
  std::string Text(ServingState& state);

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& latencies_;
};

}  // namespace taopd
