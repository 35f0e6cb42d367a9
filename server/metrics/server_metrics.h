// What GET /metrics shows. Request counts and latencies are recorded by the protocols; the engine's
// numbers are read when the text is made. Queue lengths and token counts also appear under the
// names that vLLM gives them, for dashboards and autoscalers made for vLLM.
//
// Thread-safe. Label values come from fixed sets: a client cannot make new series.
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

  // `method`: "grpc/Score", "POST /v1/completions", ...; `code`: a gRPC code's name or an HTTP
  // status.
  void RecordRequest(const std::string& method, const std::string& code, absl::Duration latency);

  // Prometheus text format 0.0.4.
  std::string Text(ServingState& state);

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& latencies_;
};

}  // namespace taopd
