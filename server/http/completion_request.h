// The body of POST /v1/completions, as vLLM defines it. Fields that vLLM does not know are ignored,
// as vLLM does. Fields that would change the answer and are not supported here are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/engine/engine.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct CompletionPrompt {
  std::vector<int32_t> token_ids;
  std::optional<std::string> text;  // as sent; none if ids were sent
  // How many tokens the engine may generate: max_tokens, cut to what the model's context leaves, as
  // vLLM does. For max_tokens 0 the engine generates one, which is not reported (as vLLM does).
  int64_t max_new_tokens = 1;
};

struct CompletionRequest {
  std::string request_id;  // the client's, or a random one
  std::string model;       // as the client asked, or the served name
  std::vector<CompletionPrompt> prompts;
  int64_t max_tokens = 16;  // as asked; 0 only with echo
  bool echo = false;
  // How many alternatives to report per generated token; -1 has become the vocabulary's size.
  std::optional<int32_t> logprobs;
  // The same per token of the prompt. With echo, `logprobs` if the client gave none.
  std::optional<int32_t> prompt_logprobs;
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  int64_t n = 1;  // choices per prompt
  // Of choice 0 of each prompt; choice i has seed + i. None: each choice has a random one.
  std::optional<int64_t> seed;
  // What all choices have in common; seed, max_new_tokens and what is reported are left alone.
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  std::string cache_salt;

  // Choices are numbered through: those of prompt 0, those of prompt 1, ...
  size_t NumChoices() const { return prompts.size() * static_cast<size_t>(n); }
  const CompletionPrompt& PromptOf(size_t choice) const {
    return prompts[choice / static_cast<size_t>(n)];
  }
};

// Reads and checks a body. Any thread may call; calls beyond a few at once wait, because a parsed
// body takes many times the memory of its text.
std::variant<CompletionRequest, HttpError> ParseCompletionRequest(const std::string& body,
                                                                  const ServedModel& model);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
