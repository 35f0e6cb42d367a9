// The answers of POST /v1/completions: vLLM's keys in vLLM's order, nulls kept, compact separators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/http/answer.h"
#include "server/http/completions/completion_request.h"
#include "server/http/generation/generation.h"
#include "server/http/generation/token_text.h"
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

// Sends all updates of `generation`, then the end of the stream. `scores` are the prompts' rows if
// echo shows their log-probs. Errors become an event of the stream.
void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, int64_t created_unix_s, Generation* generation,
                      const SendPiece& send);

// Appends the `logprobs` object of the tokens that `generated` holds, which are the last of `ids`;
// null if no log-probs were asked for. If `echoed_rows` is not null, those of the prompt stand in
// front. `text_offset` is that of AppendCompletionLogprobs. Returns INTERNAL as above.
absl::Status AppendLogprobs(const CompletionRequest& request, const GenerationPrompt& prompt,
                            const std::optional<ScoreRows>* echoed_rows,
                            const std::vector<int32_t>& ids, const GeneratedTokens& generated,
                            TokenText& tokens, int64_t* text_offset, std::string* out);

// The text of a choice's prompt as echo repeats it; empty where echo shows no text.
std::string EchoedText(const CompletionRequest& request, const GenerationPrompt& prompt,
                       const Tokenizer* tokenizer);

}  // namespace taopd
