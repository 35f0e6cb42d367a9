// The body of POST /v1/completions, as vLLM defines it. Fields that vLLM does not know are ignored,
// as vLLM does. Fields that would change the answer and are not supported here are refused by name.
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
  std::optional<std::string> text;  // as sent; none if ids were sent
};

struct CompletionRequest {
  std::string request_id;  // the client's, or a random one
  std::string model;       // as the client asked, or the served name
  std::vector<CompletionPrompt> prompts;
  int64_t max_tokens = 16;  // 0 only with echo
  bool echo = false;
  // How many alternatives to report per generated token; -1 has become the vocabulary's size.
  std::optional<int32_t> logprobs;
  // The same per token of the prompt. With echo, `logprobs` if the client gave none.
  std::optional<int32_t> prompt_logprobs;
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  double temperature = 1.0;  // of sampling; 0 is greedy. Log-probs are reported at temperature 1
  double top_p = 1.0;
  int32_t top_k = 0;  // 0: off
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int64_t> seed;

  // How many tokens the engine generates. For max_tokens 0 it generates one, which is not reported
  // (as vLLM does).
  int64_t NumNewTokens() const { return max_tokens == 0 ? 1 : max_tokens; }
};

// Reads and checks a body. Any thread may call; calls beyond a few at once wait, because a parsed
// body takes many times the memory of its text.
std::variant<CompletionRequest, HttpError> ParseCompletionRequest(const std::string& body,
                                                                  const ServedModel& model);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
