// The common parts of streams in OpenAI's shape.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/generation/streamed_choice.h"
#include "server/http/answer.h"
#include "server/http/generation/generation.h"

namespace taopd {

// The common part of the chunks of one stream. All references must outlive the object.
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

// Sends the event of each update; an update whose chunk is empty has none.
// Returns false if the stream has ended before its time: the client has gone, or there was an
// error, which has been sent with the end of the stream.
bool StreamUpdates(Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const SendPiece& send);

}  // namespace taopd
