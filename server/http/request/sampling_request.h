// Reads the fields that requests of several protocols have in common. Names, ranges, defaults and
// messages are vLLM's.
#pragma once

#include <optional>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns NOT_FOUND if another model is served.
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

// model, request_id, cache_salt, stream, stream_options.
absl::Status ReadEnvelope(JsonFields& fields, const ServedModel& model, GenerationRequest* request);

// Reads the fields of sampling, the end of the text, n and the seed. Absent fields keep `defaults`.
absl::Status ReadSampling(JsonFields& fields, const SamplingParams& defaults,
                          const ServedModel& model, GenerationRequest* request);

// `name` is logprobs, top_logprobs or prompt_logprobs; `kind` is "sample" or "prompt".
absl::Status ReadLogprobs(JsonFields& fields, const char* name, const char* kind,
                          const ServedModel& model, std::optional<int32_t>* out);

// prompt_logprobs_start, prompt_logprob_token_ids and prompt_logprobs_format, which vLLM does not
// have. Call it when the prompts and prompt_logprobs are known.
absl::Status ReadScoring(JsonFields& fields, const ServedModel& model, GenerationRequest* request);

// The list of ids, or of lists of ids with one for each scored position, whose log-probs are asked
// for.
absl::Status ReadCandidates(JsonFields& fields, const char* name, const ServedModel& model,
                            PromptScoring* scoring);

}  // namespace taopd
