// The body of POST /generate, as SGLang defines it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The prompts' score_start is the position after logprob_start_len. max_tokens is max_new_tokens,
// and 0 scores without generating.
struct SglangRequest : GenerationRequest {
  bool is_batch = false;  // the answer is a list
  bool return_logprob = false;
  std::vector<int64_t> start_lens;  // logprob_start_len of each prompt
  bool text_in_logprobs = false;
  bool flat = false;  // input_top_logprobs as flat arrays
  bool base64 = false;
};

// Reads and checks a body. Any thread may call; calls beyond a few at once wait (ReadBody).
absl::StatusOr<SglangRequest> ParseSglangRequest(const std::string& body, const ServedModel& model);

// Does the same for a parsed body. `sampling` are the fields of its sampling_params.
absl::Status ReadSglangRequest(JsonFields& fields, JsonFields& sampling, const ServedModel& model,
                               SglangRequest* request);

}  // namespace taopd
