// The body of POST /v1/completions, as vLLM defines it. Fields that vLLM does not know are ignored,
// as vLLM does; fields that would change the answer and are not supported here are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct CompletionPrompt {
  std::vector<int32_t> token_ids;
  std::optional<std::string> text;  // as sent; none for ids
};

struct CompletionRequest {
  std::string request_id;  // sent, or random
  std::string model;       // as asked, or the served name
  std::vector<CompletionPrompt> prompts;
  int64_t max_tokens = 16;  // 0 only with echo
  bool echo = false;
  std::optional<int32_t> logprobs;  // k of the generated tokens; -1 is resolved to the vocabulary
  std::optional<int32_t> prompt_logprobs;  // k of the prompt; with echo, `logprobs` where not given
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;  // 0: off
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int64_t> seed;

  // Tokens the engine generates: max_tokens 0 computes one, which is hidden (as vLLM does).
  int64_t NumNewTokens() const { return max_tokens == 0 ? 1 : max_tokens; }
};

std::variant<CompletionRequest, HttpError> ParseCompletionRequest(const std::string& body,
                                                                  const ServedModel& model);

// A random id of 32 hexadecimal digits, as vLLM's.
std::string RandomRequestId();

}  // namespace taopd
