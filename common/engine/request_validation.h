// The limits of requests and engine options, in one place: the engine checks every request with
// these, and a server may do so before it queues anything. Messages name the field, the value and
// the limit.
#pragma once

#include "common/engine/engine.h"

namespace taopd {

// Token ids a request may list in stop_token_ids.
inline constexpr int64_t kMaxStopTokenIds = 1024;

absl::Status ValidateRequest(const InferenceRequest& request, const EngineLimits& limits);

// What can be said without the model (the rest is MakeTorchEngine's).
absl::Status ValidateEngineOptions(const EngineOptions& options);

}  // namespace taopd
