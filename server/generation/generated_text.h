// The text of one choice: decodes its tokens, finds the stop string that ends it, and cuts the text
// where vLLM does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine_request.h"
#include "common/text/stop_strings.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "server/generation/engine_run.h"
#include "server/generation/generation_request.h"

namespace taopd {

// The text so far. Not thread-safe.
class GeneratedText {
 public:
  // `tokenizer` must outlive the object.
  GeneratedText(const Tokenizer* tokenizer, const GenerationRequest& request)
      : decoder_(tokenizer, request.skip_special_tokens),
        matcher_(request.stop, request.include_stop_str_in_output),
        min_tokens_(request.sampling.min_tokens) {}

  // Appends a token. Returns true if a stop string of the request is complete now; the text then
  // ends with it or before it. A stop string within the first min_tokens tokens does not count.
  // Bytes of an incomplete character wait for the tokens that complete them, and are dropped if
  // none comes. REQUIRES: Push has not returned true.
  bool Push(int32_t id);

  const std::string& text() const { return matcher_.text(); }
  // Returns how many bytes of text() no later token can cut away; see StopStringMatcher.
  size_t num_streamable() const { return matcher_.num_streamable(); }
  // Returns the index of the request's stop string that is complete, if one is.
  std::optional<size_t> stop_string() const { return matcher_.matched(); }

 private:
  IncrementalDecoder decoder_;
  std::string incomplete_;  // decoded, but ends with an incomplete character
  StopStringMatcher matcher_;
  const int64_t min_tokens_;
  int64_t num_tokens_ = 0;
};

// Returns whether the sequence has ended with one of the request's stop_token_ids.
bool EndsWithStopToken(const GeneratedTokens& generated, const GenerationRequest& request);

// One choice of an answer: its tokens so far, and how much of its text has been sent. Not
// thread-safe.
class StreamedChoice {
 public:
  // `request` must outlive the object, and so must `tokenizer`, which is null for a choice without
  // text.
  StreamedChoice(const Tokenizer* tokenizer, const GenerationRequest& request,
                 std::vector<int32_t> prompt_ids)
      : request_(request), ids_(std::move(prompt_ids)), num_prompt_tokens_(ids_.size()) {
    if (tokenizer != nullptr) text_.emplace(tokenizer, request);
  }

  // Appends the tokens of an update, or all at once. Returns the text that has become ready to be
  // sent. Text that may be the beginning of a stop string is held back.
  std::string Add(const GeneratedTokens& tokens, bool is_last);

  const std::vector<int32_t>& ids() const { return ids_; }  // prompt and generated tokens
  int64_t num_generated() const { return static_cast<int64_t>(ids_.size() - num_prompt_tokens_); }
  std::optional<size_t> stop_string() const { return text_ ? text_->stop_string() : std::nullopt; }

 private:
  const GenerationRequest& request_;
  std::vector<int32_t> ids_;
  const size_t num_prompt_tokens_;
  std::optional<GeneratedText> text_;
  size_t num_sent_bytes_ = 0;
};

}  // namespace taopd
