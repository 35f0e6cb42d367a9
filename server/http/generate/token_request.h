// The body of POST /inference/v1/generate, vLLM's protocol of tokens in and tokens out.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct TokenRequest : GenerationRequest {
  bool text_output = false;     // output_mode "text": texts and named log-probs, too
  bool detokenize = true;       // whether prompt_logprobs have decoded tokens
  bool npy_candidates = false;  // vLLM's prompt_logprob_token_ids: a NumPy array of log-probs
};

// Reads and checks a body. Any thread may call; calls beyond a few at once wait (ReadBody).
absl::StatusOr<TokenRequest> ParseTokenRequest(const std::string& body, const ServedModel& model);

// Does the same for a parsed body. `sampling` are the fields of its sampling_params.
absl::Status ReadTokenRequest(JsonFields& fields, JsonFields& sampling, const ServedModel& model,
                              TokenRequest* request);

}  // namespace taopd
