// POST /v1/completions with stream: chunks in vLLM's shape, one for each update of a choice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/http/answer.h"
#include "server/http/completions/completion_request.h"
#include "server/http/generation/generation.h"

namespace taopd {

// Sends all updates of `generation`, then the end of the stream. `scores` are the prompts' rows if
// echo shows their log-probs. Errors become an event of the stream.
void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, int64_t created_unix_s, Generation* generation,
                      const SendPiece& send);

}  // namespace taopd
