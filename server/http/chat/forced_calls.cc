#include "server/http/chat/forced_calls.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/io/jsonl.h"

namespace taopd {

SplitAnswer SplitForcedCalls(ForcedCalls forced, const std::string& function,
                             const std::string& text) {
  SplitAnswer answer;
  answer.content = "";
  if (forced == ForcedCalls::kFunction) {
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) answer.calls = {{function, text}};
    return answer;
  }
  const auto list = ParseOrderedJson(text, "tool calls");
  if (!list.ok() || !list->is_array()) return answer;
  for (const auto& item : *list) {
    const bool is_call = item.is_object() && item.contains("name") && item["name"].is_string() &&
                         item.contains("parameters");
    if (!is_call) return {"", {}};
    ToolCall& call = answer.calls.emplace_back();
    call.name = item["name"].get<std::string>();
    AppendPythonJson(item["parameters"], &call.arguments);
  }
  return answer;
}

AnswerDelta ForcedCallStream::Push(std::string_view text) {
  AnswerDelta delta;
  if (forced_ == ForcedCalls::kFunction) {
    if (text.empty()) return delta;
    if (num_calls_ == 0) delta.calls.push_back({num_calls_++, function_, ""});
    delta.calls.push_back({0, std::nullopt, std::string(text)});
    return delta;
  }
  while (!text.empty()) {
    if (!in_object_) {
      const size_t open = text.find('{');
      if (open == std::string_view::npos) break;
      text.remove_prefix(open);
      in_object_ = true;
      is_named_ = false;
      scanner_ = CallScanner();
    }
    const size_t taken = scanner_.Push(text);
    PushObject(text.substr(0, taken), &delta);
    text.remove_prefix(taken);
    if (!scanner_.is_complete()) break;  // it cannot fail: it begins with a brace
    in_object_ = false;
  }
  return delta;
}

void ForcedCallStream::PushObject(std::string_view text, AnswerDelta* delta) {
  if (text.empty()) return;
  if (!is_named_ && !scanner_.name().empty()) {
    is_named_ = true;
    delta->calls.push_back({num_calls_++, scanner_.name(), ""});
  }
  if (!is_named_) return;
  std::string arguments = scanner_.TakeArguments();
  if (!arguments.empty())
    delta->calls.push_back({num_calls_ - 1, std::nullopt, std::move(arguments)});
}

}  // namespace taopd
