// The answer of POST /v1/completions: vLLM's keys in vLLM's order, nulls kept, compact separators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/http/completion_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// `results` are in the order of the request's prompts; each holds generated tokens, and scored rows
// from position 1 where prompt_logprobs was asked for and the prompt has more than one token.
// INTERNAL when a log-probability is NaN or +inf, which JSON cannot say.
absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results,
                                                   int64_t created_unix_s);

// About how many bytes that text will have at most.
int64_t EstimateResponseBytes(const CompletionRequest& request);

}  // namespace taopd
