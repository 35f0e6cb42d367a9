// POST /inference/v1/generate, vLLM's protocol of tokens in and tokens out. The answers have vLLM's
// keys in vLLM's order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/http/generation/generation.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct TokenRequest : GenerationRequest {
  bool text_output = false;     // output_mode "text": texts and named log-probs, too
  bool detokenize = true;       // whether prompt_logprobs have decoded tokens
  bool npy_candidates = false;  // vLLM's prompt_logprob_token_ids: a NumPy array of log-probs
};

// Reads and checks a body.
absl::Status ReadTokenRequest(JsonFields& fields, const ServedModel& model, TokenRequest* request);

// Returns INTERNAL if a log-probability is NaN or +inf.
absl::StatusOr<std::string> TokenResponseJson(const TokenRequest& request, const ServedModel& model,
                                              const std::vector<InferenceResult>& results,
                                              int64_t created_unix_s);

// Sends all updates of `generation`, then the end of the stream. `scores` is empty. Errors become
// an event of the stream.
void StreamTokens(const TokenRequest& request, const ServedModel& model, const PromptScores& scores,
                  int64_t created_unix_s, Generation* generation, const SendPiece& send);

}  // namespace taopd
