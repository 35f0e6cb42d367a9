// The common parts of answers in OpenAI's shape, whole or streamed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/generation/generated_text.h"
#include "server/generation/generation.h"
#include "server/http/response/answer.h"

namespace taopd {

// Returns the beginning of an answer or of a chunk, up to the inside of "choices". `id_prefix` and
// `object` are the protocol's: "cmpl-" and "text_completion".
std::string AnswerHead(const char* id_prefix, const char* object, const GenerationRequest& request);

// The common part of the chunks of one stream. All references must outlive the object.
class ChunkFrame {
 public:
  // The arguments are those of AnswerHead.
  ChunkFrame(const char* id_prefix, const char* object, const GenerationRequest& request,
             const ServedModel& model)
      : request_(request), model_(model), head_(AnswerHead(id_prefix, object, request)) {}

  const std::string& head() const { return head_; }
  // Returns the end of a chunk of a choice, after its usage.
  std::string Tail(bool is_last) const;
  // Returns the chunk that ends a stream whose client asks for the usage.
  std::string UsageChunk(const std::vector<StreamedChoice>& choices) const;

 private:
  const GenerationRequest& request_;
  const ServedModel& model_;
  const std::string head_;
};

// Sends the event of each update, then that of `usage_chunk` if the client asks for the usage, then
// the end of the stream. An update whose chunk is empty has no event. An error is sent as an event
// before the end of the stream.
void StreamUpdates(const GenerationRequest& request, Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const std::function<std::string()>& usage_chunk, const SendPiece& send);

}  // namespace taopd
