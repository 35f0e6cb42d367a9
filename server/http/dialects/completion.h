// POST /v1/completions, as vLLM defines it: the body, and the answers with vLLM's keys in vLLM's
// order, nulls kept, and compact separators. Fields that nobody knows are logged and ignored.
// Fields that would change the answer and are not supported here are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/engine/engine.h"
#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/http/generation/generation.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// max_tokens is 0 only with echo: the engine then generates one token, which is not reported (as
// vLLM does).
struct CompletionRequest : GenerationRequest {
  bool echo = false;
};

// Reads and checks a body.
absl::Status ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                   CompletionRequest* request);

// `results` are in the order of the request's choices. Each holds generated tokens. The first of
// each prompt also holds scored rows from position 1 on if prompt_logprobs was asked for and the
// prompt has more than one token.
// Returns INTERNAL if a log-probability is NaN or +inf, which JSON cannot express.
absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results,
                                                   int64_t created_unix_s);

// Sends all updates of `generation`, then the end of the stream. `scores` are the prompts' rows if
// echo shows their log-probs. Errors become an event of the stream.
void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, int64_t created_unix_s, Generation* generation,
                      const SendPiece& send);

}  // namespace taopd
