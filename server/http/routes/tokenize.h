// POST /tokenize and /detokenize, and GET /tokenizer_info, with the requests and answers of vLLM.
#pragma once

#include <string>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/http/request/json_fields.h"
#include "server/http/response/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

absl::StatusOr<Answer> RunTokenize(const std::string& body, const Caller& caller,
                                   ServingState& state);
absl::StatusOr<Answer> RunDetokenize(const std::string& body, const Caller& caller,
                                     ServingState& state);
// Returns tokenizer_config.json as transformers reads it, or an error if there is no tokenizer.
absl::StatusOr<Answer> DescribeTokenizer(const ServedModel& model);

// The functions below read the bodies. A test calls them to compare the fields with field_table.h.
struct TokenizeRequest {
  std::vector<int32_t> token_ids;
  bool return_token_strs = false;
};
absl::Status ReadTokenizeRequest(JsonFields& fields, const ServedModel& model,
                                 TokenizeRequest* request);
absl::Status ReadDetokenizeRequest(JsonFields& fields, const ServedModel& model,
                                   std::vector<int32_t>* token_ids);

}  // namespace taopd
