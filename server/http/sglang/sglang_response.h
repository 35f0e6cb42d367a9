// The answers of POST /generate in SGLang's shapes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/answer.h"
#include "server/http/generation/generation.h"
#include "server/http/sglang/sglang_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns INTERNAL if a log-probability is NaN or +inf.
absl::StatusOr<std::string> SglangResponseJson(const SglangRequest& request,
                                               const ServedModel& model,
                                               const std::vector<InferenceResult>& results,
                                               int64_t created_unix_s);

// Sends an event for each update, whose texts and ids hold everything so far, as SGLang's do, then
// the end of the stream. `scores` are the prompts' rows if log-probs were asked for.
void StreamSglang(const SglangRequest& request, const ServedModel& model,
                  const PromptScores& scores, int64_t created_unix_s, Generation* generation,
                  const SendPiece& send);

}  // namespace taopd
