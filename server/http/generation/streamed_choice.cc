#include "server/http/generation/streamed_choice.h"

#include <utility>

#include "server/http/generation/logprob_json.h"

namespace taopd {

std::string StreamedChoice::Add(const ChoiceUpdate& update) {
  const std::vector<int32_t>& new_ids = update.tokens.ids;
  ids_.insert(ids_.end(), new_ids.begin(), new_ids.end());
  if (!text_) return "";
  for (size_t i = 0; i < new_ids.size(); ++i) {
    if (text_->stop_string()) break;  // tokens after a stop string have no text
    if (update.is_last && i + 1 == new_ids.size()) {
      PushLast(new_ids[i], update.tokens.finish == FinishReason::kStop, request_, &*text_);
    } else {
      text_->Push(new_ids[i]);
    }
  }
  const size_t end = update.is_last ? text_->text().size() : text_->num_streamable();
  if (end <= num_sent_bytes_) return "";
  std::string piece = text_->text().substr(num_sent_bytes_, end - num_sent_bytes_);
  num_sent_bytes_ = end;
  return piece;
}

ChunkFrame::ChunkFrame(const char* id_prefix, const char* object, const GenerationRequest& request,
                       const ServedModel& model, int64_t created_unix_s)
    : request_(request), model_(model) {
  AppendJsonString(id_prefix + request.request_id, &head_);
  head_ += Concat(",\"object\":\"", object, "\",\"created\":", created_unix_s, ",\"model\":");
  AppendJsonString(request.model, &head_);
  head_ += ",\"choices\":[";
}

std::string ChunkFrame::Tail(bool is_last) const {
  if (!is_last || request_.include_usage) return "}";
  return ",\"system_fingerprint\":" + SystemFingerprintJson(model_) + "}";
}

std::string ChunkFrame::UsageChunk(const std::vector<StreamedChoice>& choices) const {
  int64_t num_generated = 0;
  for (const StreamedChoice& choice : choices) num_generated += choice.num_generated();
  std::string out = head_ + "],\"usage\":";
  AppendUsage(request_.NumPromptTokens(), num_generated, /*with_details=*/false, &out);
  return out + ",\"system_fingerprint\":" + SystemFingerprintJson(model_) + "}";
}

bool StreamUpdates(std::optional<ChoiceUpdate> first, Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const SendPiece& send) {
  absl::StatusOr<std::optional<ChoiceUpdate>> update = std::move(first);
  while (update.ok() && *update) {
    const absl::StatusOr<std::string> json = chunk(**update);
    if (!json.ok()) {
      update = json.status();
      break;
    }
    if (!json->empty() && !send(Event(*json))) return false;
    update = generation->Next();
  }
  if (update.ok()) return true;
  if (send(Event(FromStatus(update.status()).Json()))) send(kLastEvent);
  return false;
}

}  // namespace taopd
