// From a request to the engine's requests, one for each choice. Pure functions, any thread.
#pragma once

#include <optional>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// What the engine is to score of a prompt; nullopt if that is nothing.
std::optional<ScoreParams> ScoreParamsOf(const GenerationRequest& request,
                                         const GenerationPrompt& prompt);

// The engine's requests of all choices, in their order. With `scores`, the first choice of each
// prompt scores it. A choice with nothing to compute has neither score nor sampling.
std::vector<InferenceRequest> EngineRequests(const GenerationRequest& request, const Caller& caller,
                                             const ServedModel& model, bool scores);

// Checks the fields of all choices as the engine will, with its errors.
absl::Status ValidateChoices(const GenerationRequest& request, const EngineLimits& limits);

}  // namespace taopd
