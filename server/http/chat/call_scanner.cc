#include "server/http/chat/call_scanner.h"

#include <nlohmann/json.hpp>

namespace taopd {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Returns the value of a JSON string that has its quotes, or an empty text if it is malformed.
std::string Unquoted(const std::string& quoted) {
  const nlohmann::json value = nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

size_t CallScanner::Push(std::string_view text) {
  size_t i = 0;
  for (; i < text.size() && (state_ == State::kBefore || state_ == State::kInside); ++i) {
    Take(text[i]);
  }
  return i;
}

void CallScanner::Take(char c) {
  if (state_ == State::kBefore) {
    if (IsSpace(c)) return;
    state_ = c == '{' ? State::kInside : State::kFailed;
  } else if (in_string_) {
    TakeInString(c);
  } else {
    if (c == '{' || c == '[') ++depth_;
    if (depth_ > 1) {
      TakeInNested(c);
    } else {
      TakeInCall(c);
    }
  }
}

void CallScanner::TakeInString(char c) {
  if (depth_ == 1) {
    token_ += c;
  } else if (value_ == Value::kArguments) {
    new_arguments_ += c;
  }
  if (is_escaped_) {
    is_escaped_ = false;
  } else if (c == '\\') {
    is_escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
    if (depth_ == 1) EndString();
  }
}

void CallScanner::TakeInNested(char c) {
  if (value_ == Value::kArguments) new_arguments_ += c;
  if (c == '"') in_string_ = true;
  if (c == '}' || c == ']') --depth_;
}

void CallScanner::TakeInCall(char c) {
  switch (c) {
    case '"':
      in_string_ = true;
      token_ = c;
      break;
    case ':':
      in_value_ = true;
      value_ = key_ == "name"                                ? Value::kName
               : key_ == "arguments" || key_ == "parameters" ? Value::kArguments
                                                             : Value::kOther;
      token_.clear();
      break;
    case ',':
      EndValue();
      break;
    case '}':
    case ']':
      EndValue();
      state_ = State::kComplete;
      break;
    default:
      if (!IsSpace(c)) token_ += c;
  }
}

void CallScanner::EndString() {
  if (!in_value_) {
    key_ = Unquoted(token_);
  } else if (value_ == Value::kName && name_.empty()) {
    name_ = Unquoted(token_);
  }
}

void CallScanner::EndValue() {
  // An object or array has been passed on already, and has left nothing here.
  if (value_ == Value::kArguments) new_arguments_ += std::exchange(token_, {});
  token_.clear();
  key_.clear();
  in_value_ = false;
  value_ = Value::kOther;
}

}  // namespace taopd
