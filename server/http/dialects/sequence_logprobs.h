// POST /get_sequence_logprobs/, the protocol of TRL's own server: scores of completions, as nested
// lists or as arrays in base64.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The prompts are whole sequences, and their score_start is where the completion begins.
struct SequenceLogprobsRequest : GenerationRequest {
  std::vector<int64_t> prompt_lengths;
  bool binary = false;
};

// Blocks until the engine is done. Any thread may call.
absl::StatusOr<Answer> RunSequenceLogprobs(const std::string& body, const Caller& caller,
                                           ServingState& state);

// Reads and checks a body.
absl::Status ReadSequenceLogprobs(JsonFields& fields, const ServedModel& model,
                                  SequenceLogprobsRequest* request);

// The answer. `rows` are those of the sequences; nullopt where nothing was scored. Returns INTERNAL
// if a log-probability is NaN or +inf.
absl::StatusOr<std::string> SequenceLogprobsJson(const SequenceLogprobsRequest& request,
                                                 const std::vector<std::optional<ScoreRows>>& rows);

}  // namespace taopd
