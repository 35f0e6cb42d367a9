// Validates requests and engine options. The engine checks every request with these functions; a
// server calls them before it reserves memory for the answer. Messages name the field, the value
// and the limit. All functions are thread-safe.
#pragma once

#include "common/engine/engine.h"

namespace taopd {

// The maximum number of stop_token_ids of a request.
inline constexpr int64_t kMaxStopTokenIds = 1024;
// The maximum numbers of sequences in SamplingParams::bad_words_ids and of ids in one sequence.
inline constexpr int64_t kMaxBadWords = 1024;
inline constexpr int64_t kMaxBadWordTokens = 1024;

// The lowest temperature of scores and, except 0, of sampling. Below it, a logit of 1e8 divided by
// the temperature would not be a finite fp32 number.
inline constexpr float kMinScoreTemperature = 1e-30f;

// Returns FAILED_PRECONDITION if the request generates and the engine only scores, and
// INVALID_ARGUMENT for every other fault.
absl::Status ValidateRequest(const InferenceRequest& request, const EngineLimits& limits);

// Checks the options that do not depend on the model; MakeTorchEngine checks the rest.
absl::Status ValidateEngineOptions(const EngineOptions& options);

}  // namespace taopd
