#include "server/http/chat/chat.h"

#include <utility>

#include "common/io/jsonl.h"
#include "server/generation/request_fields.h"
#include "server/http/http_error.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRoleBytes = 256;
// The limit of the arguments of all calls together, since each text is parsed again.
constexpr size_t kMaxArgumentsBytes = size_t{4} << 20;

absl::Status ReadPart(const ordered_json& part, const std::string& where, std::string* text) {
  if (!part.is_object()) return WrongType(where, "a valid dictionary");
  const std::string type =
      part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "text";
  const char* key = type == "refusal" ? "refusal" : "text";
  if (type != "text" && type != "refusal" && type != "input_text" && type != "output_text") {
    return FieldError("messages", where, " has the type \"", type.substr(0, 64),
                      "\": the model reads text only.");
  }
  if (!part.contains(key) || !part[key].is_string())
    return WrongType(where + "." + key, "a valid string");
  *text = part[key].get<std::string>();
  return absl::OkStatus();
}

absl::Status NormalizeContent(bool as_parts, const std::string& where, ordered_json* message) {
  ordered_json parts = ordered_json::array();
  std::string joined;
  const auto add = [&](const std::string& text) {
    if (!parts.empty()) joined += '\n';
    joined += text;
    parts.push_back({{"type", "text"}, {"text", text}});
  };
  const ordered_json content = message->value("content", ordered_json());
  if (content.is_string()) {
    add(content.get<std::string>());
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      std::string text;
      TAOPD_RETURN_IF_ERROR(ReadPart(content[i], Concat(where, ".content.", i), &text));
      add(text);
    }
  } else if (!content.is_null()) {
    return WrongType(where + ".content", "a valid string");
  }
  if (as_parts) {
    (*message)["content"] = std::move(parts);
  } else {
    (*message)["content"] = std::move(joined);
  }
  return absl::OkStatus();
}

// `bytes_left` is what texts of arguments may still have.
absl::Status NormalizeToolCalls(const std::string& where, size_t* bytes_left,
                                ordered_json* message) {
  if (!message->contains("tool_calls") || (*message)["tool_calls"].is_null())
    return absl::OkStatus();
  ordered_json& calls = (*message)["tool_calls"];
  if (!calls.is_array()) return WrongType(where + ".tool_calls", "a valid list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = Concat(where, ".tool_calls.", i, ".function");
    if (!calls[i].is_object() || !calls[i].contains("function") ||
        !calls[i]["function"].is_object()) {
      return WrongType(name, "a valid dictionary");
    }
    ordered_json& function = calls[i]["function"];
    const ordered_json arguments = function.value("arguments", ordered_json());
    if (arguments.is_object()) continue;
    if (!arguments.is_null() && !arguments.is_string())
      return WrongType(name + ".arguments", "a valid string");
    const std::string text = arguments.is_string() ? arguments.get<std::string>() : "";
    if (text.empty()) {
      function["arguments"] = ordered_json::object();
      continue;
    }
    if (text.size() > *bytes_left) {
      return FieldError("messages", "the arguments of all tool_calls have more than the limit of ",
                        kMaxArgumentsBytes, " bytes.");
    }
    *bytes_left -= text.size();
    auto parsed = ParseOrderedJson(text, name + ".arguments");
    if (!parsed.ok())
      return FieldStatus("messages", Excerpt(std::string(parsed.status().message())));
    function["arguments"] = *std::move(parsed);
  }
  return absl::OkStatus();
}

void NormalizeReasoning(ordered_json* message) {
  const ordered_json reasoning = message->value("reasoning", ordered_json());
  const ordered_json content = message->value("reasoning_content", ordered_json());
  if (reasoning.is_null() && content.is_null()) return;
  const ordered_json both = reasoning.is_null() ? content : reasoning;
  (*message)["reasoning"] = both;
  (*message)["reasoning_content"] = both;
}

}  // namespace

absl::Status NormalizeMessages(bool as_parts, ordered_json* messages) {
  if (!messages->is_array()) return WrongType("messages", "a valid list");
  if (messages->empty()) {
    return FieldError(
        "messages",
        "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  size_t bytes_left = kMaxArgumentsBytes;
  for (size_t i = 0; i < messages->size(); ++i) {
    ordered_json& message = (*messages)[i];
    const std::string where = Concat("messages.", i);
    if (!message.is_object()) return WrongType(where, "a valid dictionary");
    if (!message.contains("role") || !message["role"].is_string())
      return WrongType(where + ".role", "a valid string");
    if (message["role"].get_ref<const std::string&>().size() > kMaxRoleBytes)
      return WrongType(where + ".role", Concat("a string of at most ", kMaxRoleBytes, " bytes"));
    TAOPD_RETURN_IF_ERROR(NormalizeContent(as_parts, where, &message));
    TAOPD_RETURN_IF_ERROR(NormalizeToolCalls(where, &bytes_left, &message));
    NormalizeReasoning(&message);
  }
  return absl::OkStatus();
}

std::string ContentText(const ordered_json& message) {
  const ordered_json& content = message.at("content");
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const ordered_json& part : content) {
    if (!text.empty()) text += '\n';
    text += part.at("text").get<std::string>();
  }
  return text;
}

}  // namespace taopd
