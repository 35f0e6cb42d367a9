// An engine that measures its requests, whatever their protocol.
#pragma once

#include <memory>

#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "server/metrics/request_metrics.h"
#include "server/metrics/request_trace.h"

namespace taopd {

// Returns an engine that passes everything on to `engine` and records the results of the requests.
// `trace` may be null. The pointers must outlive the result.
std::unique_ptr<InferenceEngine> MakeMeteredEngine(std::shared_ptr<InferenceEngine> engine,
                                                   RequestMetrics* metrics, RequestTrace* trace,
                                                   Clock* clock);

}  // namespace taopd
