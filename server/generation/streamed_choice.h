// One choice of a streamed answer: its tokens so far, and how much of its text has been sent.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/generation/engine_run.h"
#include "server/generation/generated_text.h"

namespace taopd {

// Not thread-safe.
class StreamedChoice {
 public:
  // `request` must outlive the object, and so must `tokenizer`, which is null for a choice without
  // text.
  StreamedChoice(const Tokenizer* tokenizer, const GenerationRequest& request,
                 std::vector<int32_t> prompt_ids)
      : request_(request), ids_(std::move(prompt_ids)), num_prompt_tokens_(ids_.size()) {
    if (tokenizer != nullptr) text_.emplace(tokenizer, request);
  }

  // Appends the tokens of the update. Returns the text that has become ready to be sent. Text that
  // may be the beginning of a stop string is held back.
  std::string Add(const ChoiceUpdate& update);

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
