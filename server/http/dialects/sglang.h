// POST /generate, as SGLang defines it: the body and the answers.
#pragma once

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

// Reads and checks a body.
absl::Status ReadSglangRequest(JsonFields& fields, const ServedModel& model,
                               SglangRequest* request);

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
