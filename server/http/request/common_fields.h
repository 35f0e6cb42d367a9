// Reads the fields that requests of several protocols have in common. Names, ranges, defaults and
// messages are vLLM's.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns NOT_FOUND if another model is served.
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

// Reads model, request_id, cache_salt, stream and stream_options.
absl::Status ReadEnvelope(JsonFields& fields, const ServedModel& model, GenerationRequest* request);

// Reads the fields of sampling, the end of the text, n and the seed. Absent fields keep `defaults`.
absl::Status ReadSampling(JsonFields& fields, const SamplingParams& defaults,
                          const ServedModel& model, GenerationRequest* request);

// Reads a number of log-probs. `name` is logprobs, top_logprobs or prompt_logprobs; `kind` is
// "sample" or "prompt".
absl::Status ReadLogprobs(JsonFields& fields, const char* name, const char* kind,
                          const ServedModel& model, std::optional<int32_t>* out);

// Returns INVALID_ARGUMENT if max_tokens is below 1.
absl::Status CheckMaxTokens(int64_t max_tokens);

// Reads prompt_logprobs for a protocol that does not stream them.
absl::Status ReadPromptLogprobs(JsonFields& fields, const ServedModel& model,
                                GenerationRequest* request);

// Reads prompt_logprobs_start, prompt_logprob_token_ids and prompt_logprobs_format, which vLLM does
// not have. A stream does not report them and is refused with any of them, except the first one if
// `streams_start`. Call it when the prompts and prompt_logprobs are known.
absl::Status ReadScoring(JsonFields& fields, const ServedModel& model, bool streams_start,
                         GenerationRequest* request);

// Reads the ids whose log-probs are requested: one list, or one list per scored position.
absl::Status ReadCandidates(JsonFields& fields, const char* name, const ServedModel& model,
                            PromptScoring* scoring);

// Reads truncate_prompt_tokens and truncation_side. Call it before prompts are added.
absl::Status ReadTruncation(JsonFields& fields, GenerationRequest* request);

// Adds a prompt of token ids, truncated as the request asks. `field` names it in messages.
absl::Status AddPromptIds(const nlohmann::ordered_json& ids, const char* field,
                          const ServedModel& model, GenerationRequest* request);

// Checks what can only be checked when all prompts are known, fits the prompts (FitPrompts), and
// sets what is reported of generated tokens.
absl::Status FinishPrompts(const ServedModel& model, bool echo_only, GenerationRequest* request);

}  // namespace taopd
