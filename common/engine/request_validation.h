// Judges requests and engine options, in one place. The engine checks every request with these
// functions; a server calls them before it takes memory for the answer. Messages name the field,
// the value and the limit. All functions are thread-safe.
#pragma once

#include "common/engine/engine.h"

namespace taopd {

// The limit of the number of a request's stop_token_ids.
inline constexpr int64_t kMaxStopTokenIds = 1024;
// The limits of SamplingParams::bad_words_ids: sequences, and ids of one sequence.
inline constexpr int64_t kMaxBadWords = 1024;
inline constexpr int64_t kMaxBadWordTokens = 1024;

// The lowest temperature of scores and, except 0, of sampling. Below it, a logit of 1e8 divided by
// the temperature would not be a finite fp32 number.
inline constexpr float kMinScoreTemperature = 1e-30f;

// Returns FAILED_PRECONDITION if the request asks to generate and the engine only scores, and
// INVALID_ARGUMENT for everything else that is wrong.
absl::Status ValidateRequest(const InferenceRequest& request, const EngineLimits& limits);

// Checks what does not depend on the model; MakeTorchEngine checks the rest.
absl::Status ValidateEngineOptions(const EngineOptions& options);

}  // namespace taopd
