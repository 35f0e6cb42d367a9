// A request in the form that all protocols for generation and scoring share: prompts, sampling, and
// what to report. Each protocol reads its body into a GenerationRequest and writes its own answer
// from the results.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine_request.h"
#include "server/serving/byte_budget.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_text.h"

namespace taopd {

struct GenerationPrompt {
  std::vector<int32_t> token_ids;
  std::optional<std::string> text;  // the text that was sent; nullopt if ids were sent
  // The maximum number of tokens to generate: max_tokens, cut to what the model's context leaves,
  // as in vLLM. It is 0 if the prompt is only scored.
  int64_t max_new_tokens = 1;
  int64_t score_start = 0;  // the first scored position; 0 means PromptScoring::start
};

// The log-probs of a prompt to report, beyond vLLM's own fields.
struct PromptScoring {
  int64_t start = 1;  // the first position; those before it are null
  // The ids whose log-probs are reported at each position: one list for all positions, or one per
  // position. -1 pads a list and is reported as -inf.
  std::vector<int32_t> candidate_ids;  // [R, M], or [M]
  int32_t num_candidates = 0;          // M
  bool one_list = true;                // candidate_ids is [M]
  bool compact = false;                // arrays in base64 instead of objects
};

// The form that a request demands of its texts.
struct RequestedGrammar {
  GrammarSpec spec;
  std::string field;  // the request's field: "response_format.json_schema.schema"
};

struct GenerationRequest {
  std::string request_id;  // the client's, or a random one
  std::string model;       // the client's name of the model, or the served name
  std::vector<GenerationPrompt> prompts;
  int64_t max_tokens = 16;  // the client's value; INT64_MAX means all that the context leaves
  // The number of alternatives to report per generated token. -1 is already replaced by the size of
  // the vocabulary.
  std::optional<int32_t> logprobs;
  // The number of alternatives to report per token of the prompt.
  std::optional<int32_t> prompt_logprobs;
  PromptScoring scoring;
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  bool ranks = false;  // report the ranks of generated tokens
  int64_t n = 1;       // choices per prompt
  // The seed of choice 0 of each prompt; choice i has seed + i. If absent, each choice has a random
  // one.
  std::optional<uint64_t> seed;
  // The parameters that all choices share. seed and max_new_tokens are not used.
  SamplingParams sampling;
  std::optional<RequestedGrammar> grammar;    // nullopt allows any form
  std::shared_ptr<Grammar> compiled_grammar;  // set by CompileGrammar; each choice has its own mask
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  std::string cache_salt;
  std::optional<int64_t> truncate_prompt_tokens;  // tokens to keep; -1 means what the model takes
  bool truncate_right = false;                    // keep the first tokens instead of the last

  bool stream = false;
  bool include_usage = false;     // send a last chunk with the sums
  bool continuous_usage = false;  // send the sums in every chunk

  int64_t created_unix_s = 0;  // the time of the answer, where a protocol reports it

  // Choices are numbered across prompts: first those of prompt 0, then those of prompt 1, ...
  size_t NumChoices() const { return prompts.size() * static_cast<size_t>(n); }
  const GenerationPrompt& PromptOf(size_t choice) const {
    return prompts[choice / static_cast<size_t>(n)];
  }
  int64_t NumPromptTokens() const {
    int64_t sum = 0;
    for (const GenerationPrompt& prompt : prompts)
      sum += static_cast<int64_t>(prompt.token_ids.size());
    return sum;
  }
};

// The client of a request.
struct Caller {
  std::string request_id = {};  // X-Request-Id; replaces the body's request_id unless it is empty
  std::string client = {};      // its name for turns and shares (client_name.h)
  absl::Time deadline = absl::InfiniteFuture();
  // Called several times per second. The work is cancelled when it returns true.
  std::function<bool()> is_gone = nullptr;
  // Receives the reservation of the answer's memory; hold it until the answer is sent.
  std::function<void(ByteBudget::Reservation)> hold_memory = nullptr;
};

}  // namespace taopd
