// Values as text: Python's str() and repr(), and json.dumps().
#pragma once

#include <string>

#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

std::string FormatFloat(double value);         // repr(float): shortest, "1.0", "1e+16"
std::string QuoteText(std::string_view text);  // repr(str)
// What {{ value }} prints. Charged to the runtime.
std::string ToString(Runtime& runtime, const Value& value);
std::string Repr(Runtime& runtime, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool is_indented = false;
  std::string indent;          // of one level
  std::string item_separator;  // ", ", or "," with an indent
  std::string key_separator = ": ";
};
std::string ToJson(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace taopd::jinja
