#include "server/http/generation/chunk_frame.h"

#include <utility>

#include "server/http/generation/logprob_json.h"

namespace taopd {

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

bool StreamUpdates(Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const SendPiece& send) {
  absl::StatusOr<std::optional<ChoiceUpdate>> update = generation->Next();
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
