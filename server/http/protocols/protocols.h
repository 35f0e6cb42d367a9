// The HTTP protocols that generate and score. Unknown fields are logged and ignored; fields that
// would change the answer and are not supported here are refused by name. Answers have the
// protocol's keys in its order, nulls kept, and compact separators.
//
// Each protocol has three functions in a source of its own. ReadX reads and checks a body.
// XResponseJson writes a whole answer from the results of the choices, in their order, of which the
// first of each prompt holds the prompt's rows; it returns INTERNAL if a log-probability is NaN or
// +inf, which JSON cannot express. StreamX sends all updates of `generation`, then the end of the
// stream; errors become an event. Its `scores` are the prompts' rows if the protocol streams them,
// and empty otherwise. The functions that answer a route with them are in protocols.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/generation/generation.h"
#include "server/generation/generation_request.h"
#include "server/http/request/json_fields.h"
#include "server/http/response/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

// POST /v1/completions, as vLLM defines it. max_tokens is 0 only with echo: the engine then
// generates one token, which is not reported (as vLLM does).
struct CompletionRequest : GenerationRequest {
  bool echo = false;
};
absl::Status ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                   CompletionRequest* request);
absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results);
void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, Generation* generation, const SendPiece& send);

// POST /inference/v1/generate, vLLM's tokens in, tokens out.
struct TokenRequest : GenerationRequest {
  bool text_output = false;     // output_mode "text": texts and named log-probs, too
  bool detokenize = true;       // whether prompt_logprobs have decoded tokens
  bool npy_candidates = false;  // vLLM's prompt_logprob_token_ids: a NumPy array of log-probs
};
absl::Status ReadTokenRequest(JsonFields& fields, const ServedModel& model, TokenRequest* request);
absl::StatusOr<std::string> TokenResponseJson(const TokenRequest& request, const ServedModel& model,
                                              const std::vector<InferenceResult>& results);
void StreamTokens(const TokenRequest& request, const ServedModel& model, const PromptScores& scores,
                  Generation* generation, const SendPiece& send);

// POST /generate, as SGLang defines it. The prompts' score_start is the position after
// logprob_start_len. max_tokens is max_new_tokens, and 0 scores without generating. The texts and
// ids of an event hold everything so far.
struct SglangRequest : GenerationRequest {
  bool is_batch = false;  // the answer is a list
  bool return_logprob = false;
  std::vector<int64_t> start_lens;  // logprob_start_len of each prompt
  bool text_in_logprobs = false;
  bool flat = false;  // input_top_logprobs as flat arrays
  bool base64 = false;
};
absl::Status ReadSglangRequest(JsonFields& fields, const ServedModel& model,
                               SglangRequest* request);
absl::StatusOr<std::string> SglangResponseJson(const SglangRequest& request,
                                               const ServedModel& model,
                                               const std::vector<InferenceResult>& results);
void StreamSglang(const SglangRequest& request, const ServedModel& model,
                  const PromptScores& scores, Generation* generation, const SendPiece& send);

// POST /get_sequence_logprobs/, the protocol of TRL's own server: scores of completions, as nested
// lists or as arrays in base64. The prompts are whole sequences, and their score_start is where the
// completion begins.
struct SequenceLogprobsRequest : GenerationRequest {
  std::vector<int64_t> prompt_lengths;
  bool binary = false;
};
absl::Status ReadSequenceLogprobs(JsonFields& fields, const ServedModel& model,
                                  SequenceLogprobsRequest* request);

// These functions parse a body, run its prompts on the engine and make the answer. They block until
// the engine is done, or, if the request asks for a stream, has its first token. Any thread may
// call.
absl::StatusOr<Answer> RunCompletion(const std::string& body, const Caller& caller,
                                     ServingState& state);
absl::StatusOr<Answer> RunChat(const std::string& body, const Caller& caller, ServingState& state);
absl::StatusOr<Answer> RunTokenGeneration(const std::string& body, const Caller& caller,
                                          ServingState& state);
absl::StatusOr<Answer> RunSglang(const std::string& body, const Caller& caller,
                                 ServingState& state);
absl::StatusOr<Answer> RunSequenceLogprobs(const std::string& body, const Caller& caller,
                                           ServingState& state);

}  // namespace taopd
