// The metrics of GET /metrics. The protocols record request counts and latencies; the engine's
// numbers are read when the text is made. Queue lengths and token counts also appear under vLLM's
// names, for dashboards and autoscalers made for vLLM.
//
// Thread-safe. All label values come from fixed sets, so that a client cannot create new series.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "server/metrics/access_log.h"
#include "server/metrics/request_metrics.h"
#include "server/serving/serving_state.h"

namespace taopd {

class ServerMetrics {
 public:
  ServerMetrics();

  // Makes the object also write a line for each request to `log`, which must outlive it. Call it
  // before the first request.
  void SetAccessLog(AccessLog* log) { access_log_ = log; }

  // Records a request. `method` is "grpc/Score", "POST /v1/completions", ...; `code` is the name of
  // a gRPC code or an HTTP status. The other arguments are for the access log.
  void RecordRequest(const std::string& method, const std::string& code, absl::Duration latency,
                     const std::string& client = "", const std::string& request_id = "");

  // Returns the metrics of a model's requests. The first call creates them under the model's name.
  // Valid as long as this object.
  RequestMetrics* OfModel(const std::string& model_name);

  // Returns the metrics in Prometheus's text format 0.0.4.
  std::string Text(ServingState& state);

 private:
  AccessLog* access_log_ = nullptr;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& latencies_;
  absl::Mutex mutex_;
  std::unique_ptr<RequestMetrics> request_metrics_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
