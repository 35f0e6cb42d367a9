// The answer of POST /v1/completions: vLLM's keys in vLLM's order, nulls kept, compact separators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/http/completions/completion_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// `results` are in the order of the request's choices. Each holds generated tokens. The first of
// each prompt also holds scored rows from position 1 on if prompt_logprobs was asked for and the
// prompt has more than one token.
// Returns INTERNAL if a log-probability is NaN or +inf, which JSON cannot express.
absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results,
                                                   int64_t created_unix_s);

// The text of a choice's prompt as echo repeats it; empty where echo shows no text.
std::string EchoedText(const CompletionRequest& request, const GenerationPrompt& prompt,
                       const Tokenizer* tokenizer);

}  // namespace taopd
