#include "server/http/chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "common/io/jsonl.h"
#include "server/http/request/json_fields.h"
#include "server/http/request/request_body.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";

// Returns nullopt if the text is not a call.
std::optional<ToolCall> ParseCall(const std::string& json, bool may_have_parameters) {
  const auto call = ParseOrderedJson(json, "tool call");
  if (!call.ok() || !call->is_object()) return std::nullopt;
  const auto name = call->find("name");
  auto arguments = call->find("arguments");
  if (arguments == call->end() && may_have_parameters) arguments = call->find("parameters");
  if (name == call->end() || !name->is_string() || arguments == call->end()) return std::nullopt;
  ToolCall out;
  out.name = name->get<std::string>();
  AppendPythonJson(*arguments, &out.arguments);
  return out;
}

SplitAnswer SplitHermes(const std::string& text) {
  const size_t first = text.find(kOpen);
  SplitAnswer answer;
  for (size_t open = first; open != std::string::npos;) {
    const size_t begin = open + kOpen.size();
    const size_t end = std::min(text.find(kClose, begin), text.size());
    std::optional<ToolCall> call =
        ParseCall(text.substr(begin, end - begin), /*may_have_parameters=*/false);
    if (!call) return {text, {}};
    answer.calls.push_back(*std::move(call));
    open = text.find(kOpen, end);
  }
  if (first != 0) answer.content = text.substr(0, first);
  return answer;
}

SplitAnswer SplitLlama3(const std::string& text) {
  SplitAnswer answer;
  for (size_t open = text.find('{'); open != std::string::npos;) {
    CallScanner scanner;
    const size_t size = scanner.Push(std::string_view(text).substr(open));
    if (!scanner.is_complete()) return {text, {}};
    std::optional<ToolCall> call = ParseCall(text.substr(open, size), /*may_have_parameters=*/true);
    if (!call) return {text, {}};
    answer.calls.push_back(*std::move(call));
    open = text.find('{', open + size);
  }
  if (answer.calls.empty()) answer.content = text;
  return answer;
}

// Returns the length of the longest end of the text with which `tag` begins.
size_t Overlap(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

// Appends what the scanner has read of a call: its name once it is complete, and then its
// arguments.
void AppendDeltas(CallScanner* scanner, bool* is_named, int64_t* num_calls, AnswerDelta* delta) {
  if (!*is_named && !scanner->name().empty()) {
    *is_named = true;
    delta->calls.push_back({(*num_calls)++, scanner->name(), ""});
  }
  if (!*is_named) return;
  std::string arguments = scanner->TakeArguments();
  if (!arguments.empty())
    delta->calls.push_back({*num_calls - 1, std::nullopt, std::move(arguments)});
}

}  // namespace

void AppendPythonJson(const ordered_json& value, std::string* out) {
  if (!value.is_structured()) {
    *out += JsonText(value);
    return;
  }
  const bool is_object = value.is_object();
  *out += is_object ? '{' : '[';
  bool is_first = true;
  for (const auto& item : value.items()) {
    if (!is_first) *out += ", ";
    is_first = false;
    if (is_object) {
      AppendPythonJson(item.key(), out);
      *out += ": ";
    }
    AppendPythonJson(item.value(), out);
  }
  *out += is_object ? '}' : ']';
}

std::string NewToolCallId() { return "chatcmpl-tool-" + RandomRequestId(); }

SplitAnswer SplitToolCalls(ToolCallFormat format, const std::string& text) {
  switch (format) {
    case ToolCallFormat::kHermes:
      return SplitHermes(text);
    case ToolCallFormat::kLlama3Json:
      return SplitLlama3(text);
    case ToolCallFormat::kNone:
      break;
  }
  return {text, {}};
}

AnswerDelta ToolCallStream::Push(std::string_view text, bool is_last) {
  pending_ += text;
  AnswerDelta delta;
  while (Step(is_last, &delta)) {
  }
  if (is_last && state_ == State::kCall) EndCall(&delta);
  return delta;
}

bool ToolCallStream::Step(bool is_last, AnswerDelta* delta) {
  switch (state_) {
    case State::kStart:
      return Start(is_last);
    case State::kContent:
      return FindTag(is_last, delta);
    case State::kBetween:
      return format_ == ToolCallFormat::kHermes ? FindTag(is_last, delta) : FindNextObject(delta);
    case State::kCall:
      return ReadCall(is_last, delta);
    case State::kPlain:
      break;
  }
  delta->content += std::exchange(pending_, {});
  return false;
}

bool ToolCallStream::Start(bool is_last) {
  if (pending_.starts_with(kPythonTag)) {
    BeginCall(kPythonTag);
    pending_.erase(0, kPythonTag.size());
    return true;
  }
  return (is_last || !kPythonTag.starts_with(pending_)) && BeginObject();
}

bool ToolCallStream::BeginObject() {
  if (pending_.starts_with('{')) {
    BeginCall("");
  } else {
    state_ = State::kPlain;
  }
  return true;
}

bool ToolCallStream::FindTag(bool is_last, AnswerDelta* delta) {
  const size_t tag = pending_.find(kOpen);
  const bool is_found = tag != std::string::npos;
  const size_t held = is_found || is_last ? 0 : Overlap(pending_, kOpen);
  const size_t end = is_found ? tag : pending_.size() - held;
  if (state_ == State::kContent) delta->content += pending_.substr(0, end);
  pending_.erase(0, is_found ? end + kOpen.size() : end);
  if (is_found) BeginCall(kOpen);
  return is_found;
}

bool ToolCallStream::FindNextObject(AnswerDelta* delta) {
  const size_t next = pending_.find_first_not_of("; \t\r\n");
  if (next == std::string::npos) {
    pending_.clear();
    return false;
  }
  pending_.erase(0, next);
  return BeginObject();
}

bool ToolCallStream::ReadCall(bool is_last, AnswerDelta* delta) {
  if (format_ == ToolCallFormat::kLlama3Json) {
    const size_t taken = scanner_.Push(pending_);
    Feed(std::string_view(pending_).substr(0, taken), delta);
    pending_.erase(0, taken);
    if (!scanner_.is_complete() && !scanner_.has_failed()) return false;
    EndCall(delta);
    return true;
  }
  const size_t close = pending_.find(kClose);
  const bool is_closed = close != std::string::npos;
  const size_t held = is_closed || is_last ? 0 : Overlap(pending_, kClose);
  const size_t end = is_closed ? close : pending_.size() - held;
  const std::string body = pending_.substr(0, end);
  scanner_.Push(body);
  Feed(body, delta);
  pending_.erase(0, end);
  if (!is_closed) return false;
  if (!is_named_) raw_ += kClose;
  pending_.erase(0, kClose.size());
  EndCall(delta);
  return true;
}

void ToolCallStream::BeginCall(std::string_view opening) {
  state_ = State::kCall;
  scanner_ = CallScanner();
  raw_ = opening;
  is_named_ = false;
}

void ToolCallStream::Feed(std::string_view text, AnswerDelta* delta) {
  if (!is_named_) raw_ += text;
  AppendDeltas(&scanner_, &is_named_, &num_calls_, delta);
  if (is_named_) raw_.clear();
}

void ToolCallStream::EndCall(AnswerDelta* delta) {
  if (!is_named_) delta->content += std::exchange(raw_, {});
  if (format_ == ToolCallFormat::kHermes) {
    state_ = num_calls_ > 0 ? State::kBetween : State::kContent;
  } else {
    state_ = is_named_ ? State::kBetween : State::kPlain;
  }
}

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
    AppendDeltas(&scanner_, &is_named_, &num_calls_, &delta);
    text.remove_prefix(taken);
    if (!scanner_.is_complete()) break;  // it cannot fail: it begins with a brace
    in_object_ = false;
  }
  return delta;
}

}  // namespace taopd
