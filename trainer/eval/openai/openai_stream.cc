#include "trainer/eval/openai/openai_stream.h"

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Returns the text in a chunk, or null.
const Json* TextOf(const Json& choice) {
  if (choice.contains("text")) return &choice.at("text");
  if (!choice.contains("delta") || !choice.at("delta").is_object()) return nullptr;
  const Json& delta = choice.at("delta");
  return delta.contains("content") ? &delta.at("content") : nullptr;
}

}  // namespace

void OpenAiStream::Push(std::string_view bytes) {
  line_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line = std::string_view(line_).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    HandleLine(line);
  }
  line_.erase(0, begin);
}

// Other fields than data, comments and empty lines have no meaning here.
void OpenAiStream::HandleLine(std::string_view line) {
  constexpr std::string_view kData = "data:";
  if (!status_.ok() || is_done_ || !line.starts_with(kData)) return;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    is_done_ = true;
    return;
  }
  const absl::StatusOr<Json> chunk = ParseOrderedJson(std::string(line), "a chunk of the reply");
  if (!chunk.ok() || !chunk->is_object()) {
    status_ = DataLoss("a chunk of the reply is not a JSON object");
    return;
  }
  if (chunk->contains("error")) {
    const Json& error = chunk->at("error");
    const bool has_message = error.is_object() && error.contains("message");
    status_ =
        Internal("the server ends the reply: ", (has_message ? error.at("message") : error).dump());
    return;
  }
  const auto choices = chunk->find("choices");
  if (choices == chunk->end() || !choices->is_array() || choices->empty()) return;  // usage
  const Json& choice = choices->front();
  if (!choice.is_object()) {
    status_ = DataLoss("a chunk of the reply holds no choice");
    return;
  }
  const Json* text = TextOf(choice);
  if (text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty())
    on_text_(text->get_ref<const std::string&>());
  const auto finish = choice.find("finish_reason");
  if (finish != choice.end() && finish->is_string()) finish_reason_ = finish->get<std::string>();
}

absl::Status OpenAiStream::End() const {
  TAOPD_RETURN_IF_ERROR(status_);
  if (is_done_ || !finish_reason_.empty()) return absl::OkStatus();
  return DataLoss("the reply is not a stream of server-sent events, or it has ended early");
}

}  // namespace taopd
