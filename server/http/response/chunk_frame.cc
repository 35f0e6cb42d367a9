#include "server/http/response/chunk_frame.h"

#include "common/io/jsonl.h"
#include "server/http/http_error.h"
#include "server/http/response/answer_json.h"

namespace taopd {

std::string AnswerHead(const char* id_prefix, const char* object,
                       const GenerationRequest& request) {
  return Concat("{\"id\":", JsonText(id_prefix + request.request_id), ",\"object\":\"", object,
                "\",\"created\":", request.created_unix_s, ",\"model\":", JsonText(request.model),
                ",\"choices\":[");
}

std::string ChunkFrame::Tail(bool is_last) const {
  if (!is_last || request_.include_usage) return "}";
  return ",\"system_fingerprint\":" + SystemFingerprintJson(model_) + "}";
}

std::string ChunkFrame::UsageChunk(const std::vector<StreamedChoice>& choices) const {
  int64_t num_generated = 0;
  for (const StreamedChoice& choice : choices) num_generated += choice.num_generated();
  return Concat(head_, "],\"usage\":",
                UsageJson(request_.NumPromptTokens(), num_generated, UsageDetails::kNone),
                ",\"system_fingerprint\":", SystemFingerprintJson(model_), "}");
}

void StreamUpdates(const GenerationRequest& request, Generation* generation,
                   const std::function<absl::StatusOr<std::string>(const ChoiceUpdate&)>& chunk,
                   const std::function<std::string()>& usage_chunk, const SendPiece& send) {
  absl::StatusOr<std::optional<ChoiceUpdate>> update = generation->Next();
  while (update.ok() && *update) {
    const absl::StatusOr<std::string> json = chunk(**update);
    if (!json.ok()) {
      update = json.status();
      break;
    }
    if (!json->empty() && !send(Event(*json))) return;
    update = generation->Next();
  }
  if (!update.ok()) {
    if (!send(Event(ToHttpError(update.status()).Json()))) return;
  } else if (request.include_usage && !send(Event(usage_chunk()))) {
    return;
  }
  send(kLastEvent);
}

}  // namespace taopd
