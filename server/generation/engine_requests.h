// Turns a request of any protocol into the engine's requests, one per choice. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns what the engine should score of a prompt, or nullopt if there is nothing to score.
std::optional<ScoreParams> ScoreParamsOf(const GenerationRequest& request,
                                         const GenerationPrompt& prompt);

// Returns the engine's requests of all choices, in their order. If `scores`, the first choice of
// each prompt scores it. A choice with nothing to compute has neither score nor sampling.
std::vector<InferenceRequest> EngineRequests(const GenerationRequest& request, const Caller& caller,
                                             const ServedModel& model, bool scores);

// Checks the fields of all choices as the engine does, and returns its errors.
absl::Status ValidateChoices(const GenerationRequest& request, const EngineLimits& limits);

}  // namespace taopd
