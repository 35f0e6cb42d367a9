// One choice of an answer that is streamed: its tokens so far, and how much of its text is sent.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/http/answer.h"
#include "server/http/generation/generated_text.h"
#include "server/http/generation/generation.h"

namespace taopd {

// Not thread-safe.
class StreamedChoice {
 public:
  // `tokenizer` may be null; else it must outlive the object.
  StreamedChoice(const Tokenizer* tokenizer, const GenerationRequest& request,
                 std::vector<int32_t> prompt_ids)
      : request_(request), ids_(std::move(prompt_ids)), num_prompt_tokens_(ids_.size()) {
    if (tokenizer != nullptr) text_.emplace(tokenizer, request);
  }

  // Appends the update's tokens. Returns the text that can be sent now and was not sent before:
  // what may be the beginning of a stop string is held back until it is not.
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

// What the chunks of one stream of OpenAI's shape have in common. All references outlive the
// object.
class ChunkFrame {
 public:
  // `id_prefix` and `object` are the protocol's: "cmpl-" and "text_completion".
  ChunkFrame(const char* id_prefix, const char* object, const GenerationRequest& request,
             const ServedModel& model, int64_t created_unix_s);

  // The beginning of a chunk, up to the inside of "choices".
  const std::string& head() const { return head_; }
  // The end of a chunk of a choice, behind its usage.
  std::string Tail(bool is_last) const;
  // The chunk that ends a stream whose client asks for the usage.
  std::string UsageChunk(const std::vector<StreamedChoice>& choices) const;

 private:
  const GenerationRequest& request_;
  const ServedModel& model_;
  std::string head_ = "{\"id\":";
};

// Sends the event of each update, beginning with `first`; an update whose chunk is empty has none.
// Returns false if the stream has ended
// before its time: the client has gone, or there was an error, which has been sent with the end of
// the stream.
bool StreamUpdates(std::optional<ChoiceUpdate> first, Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const SendPiece& send);

}  // namespace taopd
