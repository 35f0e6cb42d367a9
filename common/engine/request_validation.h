// The limits of requests and of engine options, in one place. The engine checks every request with
// these functions; a server may do so earlier, before it queues anything. Messages name the field,
// the value and the limit. All functions are thread-safe.
#pragma once

#include "common/engine/engine.h"

namespace taopd {

// The limit of the number of a request's stop_token_ids.
inline constexpr int64_t kMaxStopTokenIds = 1024;

// Returns FAILED_PRECONDITION if the request asks to generate and the engine only scores, and
// INVALID_ARGUMENT for everything else that is wrong.
absl::Status ValidateRequest(const InferenceRequest& request, const EngineLimits& limits);

// Checks what does not depend on the model; MakeTorchEngine checks the rest.
absl::Status ValidateEngineOptions(const EngineOptions& options);

}  // namespace taopd
