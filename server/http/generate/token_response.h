// The answers of POST /inference/v1/generate: vLLM's keys in vLLM's order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/http/answer.h"
#include "server/http/generate/token_request.h"
#include "server/http/generation/generation.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns INTERNAL if a log-probability is NaN or +inf.
absl::StatusOr<std::string> TokenResponseJson(const TokenRequest& request, const ServedModel& model,
                                              const std::vector<InferenceResult>& results,
                                              int64_t created_unix_s);

// Sends all updates of `generation`, then the end of the stream. `scores` is empty. Errors become
// an event of the stream.
void StreamTokens(const TokenRequest& request, const ServedModel& model, const PromptScores& scores,
                  int64_t created_unix_s, Generation* generation, const SendPiece& send);

}  // namespace taopd
