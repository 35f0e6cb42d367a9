// What all protocols that generate and score have in common: prompts, sampling, and what is
// reported. Each protocol reads its body into one of these, and makes its own answer from the
// results.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "server/serving/byte_budget.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/grammar_text.h"

namespace taopd {

struct GenerationPrompt {
  std::vector<int32_t> token_ids;
  std::optional<std::string> text;  // as sent; none if ids were sent
  // How many tokens the engine may generate: max_tokens, cut to what the model's context leaves, as
  // vLLM does. 0 if the prompt is only scored.
  int64_t max_new_tokens = 1;
  int64_t score_start = 0;  // the first scored position; 0 = that of PromptScoring
};

// Which log-probs of a prompt are reported, beyond vLLM's own fields.
struct PromptScoring {
  int64_t start = 1;  // the first position; those before it are null
  // Ids whose log-probs are reported at each position: one list for all positions, or one for each.
  // -1 fills lists up and is reported as -inf.
  std::vector<int32_t> candidate_ids;  // [R, M], or [M]
  int32_t num_candidates = 0;          // M
  bool one_list = true;                // candidate_ids is [M]
  bool compact = false;                // arrays in base64 instead of objects
};

// The form that a request asks of its texts.
struct RequestedGrammar {
  GrammarSpec spec;
  std::string field;  // of the request: "response_format.json_schema.schema"
  // While the text of the spec is still to be taken out of the body: the keys that lead to it.
  std::vector<std::string> path;
};

struct GenerationRequest {
  std::string request_id;  // the client's, or a random one
  std::string model;       // as the client asked, or the served name
  std::vector<GenerationPrompt> prompts;
  int64_t max_tokens = 16;  // as asked; INT64_MAX = what the context leaves
  // How many alternatives to report per generated token; -1 has become the vocabulary's size.
  std::optional<int32_t> logprobs;
  // The same per token of the prompt.
  std::optional<int32_t> prompt_logprobs;
  PromptScoring scoring;
  bool return_tokens_as_token_ids = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  // The ranks of generated tokens are reported.
  bool ranks = false;
  int64_t n = 1;  // choices per prompt
  // Of choice 0 of each prompt; choice i has seed + i. None: each choice has a random one.
  std::optional<uint64_t> seed;
  // What all choices have in common; seed and max_new_tokens are left alone.
  SamplingParams sampling;
  std::optional<RequestedGrammar> grammar;  // none: any form
  std::shared_ptr<Grammar>
      compiled_grammar;  // CompileGrammar sets it; each choice has its own mask
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  std::string cache_salt;
  std::optional<int64_t> truncate_prompt_tokens;  // keep so many; -1 = what the model takes
  bool truncate_right = false;                    // keep the first ones, not the last ones

  bool stream = false;
  bool include_usage = false;     // a last chunk with the sums
  bool continuous_usage = false;  // every chunk

  // Choices are numbered through: those of prompt 0, those of prompt 1, ...
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

// Who asks, and how to reach them.
struct Caller {
  std::string request_id = {};  // X-Request-Id; replaces the body's request_id unless it is empty
  std::string client = {};      // its name for the engine's turns and for shares (client_name.h)
  absl::Time deadline = absl::InfiniteFuture();
  // Asked several times a second; the work is cancelled once it is true.
  std::function<bool()> is_gone = nullptr;
  // Receives the reservation of the answer's memory; hold it until the answer is sent.
  std::function<void(ByteBudget::Reservation)> hold_memory = nullptr;
};

}  // namespace taopd
