// The answers of POST /v1/chat/completions: vLLM's keys in vLLM's order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/http/answer.h"
#include "server/http/chat/chat_request.h"
#include "server/http/generation/generation.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns the value of "prompt_text".
std::string PromptTextJson(const ChatRequest& request);

// `results` are those of the choices; the first holds the prompt's rows if they were asked for.
// Returns INTERNAL if a log-probability is NaN or +inf.
absl::StatusOr<std::string> ChatResponseJson(const ChatRequest& request, const ServedModel& model,
                                             const std::vector<InferenceResult>& results,
                                             int64_t created_unix_s);

// Sends the roles and all updates of `generation`, then the end of the stream. `scores` is empty.
// Errors become an event of the stream.
void StreamChat(const ChatRequest& request, const ServedModel& model, const PromptScores& scores,
                int64_t created_unix_s, Generation* generation, const SendPiece& send);

}  // namespace taopd
