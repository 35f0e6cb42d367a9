// Values as text, as Python's str(), repr() and json.dumps() write them. The functions that take a
// Runtime count their cost towards the rendering's limits.
#pragma once

#include <string>

#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

// Returns repr(float): the shortest text that reads back as the same number, such as "1.0" or
// "1e+16".
std::string FormatFloat(double value);
// Returns repr(str).
std::string QuoteText(std::string_view text);
// Returns str(value), which {{ value }} prints.
std::string ToString(Runtime& runtime, const Value& value);
// Returns repr(value).
std::string Repr(Runtime& runtime, const Value& value);

// The arguments of json.dumps().
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool is_indented = false;
  std::string indent;          // indentation of one level, if is_indented
  std::string item_separator;  // ", ", or "," if is_indented
  std::string key_separator = ": ";
};
// Returns json.dumps(value).
std::string ToJson(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace taopd::jinja
