// Filters on texts and numbers. Filters on sequences are in sequence_filters.cc.
#include <absl/strings/numbers.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

// Returns the text that soft_str() makes of a value: markup stays markup.
Text SoftText(Runtime& runtime, const Value& value) {
  return {ToString(runtime, value), value.text() != nullptr && value.text()->is_safe};
}

using Convert = std::string (*)(std::string_view);
template <Convert convert>
Value Converted(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind(convert == ToUpper ? "upper" : convert == ToLower ? "lower" : "capitalize", {});
  const Text text = SoftText(runtime, self);
  return runtime.MakeText(convert(text.bytes), text.is_safe);
}

// Unlike in str.title(), words begin after white space and - ( { [ <.
Value Title(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("title", {});
  const std::string text = ToString(runtime, self);
  std::string out;
  bool is_first = true;
  for (const std::string_view character : CodePoints(text)) {
    const bool is_break = Strip(character).empty() ||
                          (character.size() == 1 &&
                           std::string_view("-({[<").find(character[0]) != std::string_view::npos);
    out += is_first ? ToUpper(character) : ToLower(character);
    is_first = is_break;
  }
  return runtime.MakeText(std::move(out));
}

Value Trim(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("trim", {"chars"});
  const Text text = SoftText(runtime, self);
  std::optional<std::string_view> chars;
  if (bound[0] != nullptr && !bound[0]->is_none()) chars = TextArgument(*bound[0], "trim: chars");
  return runtime.MakeText(std::string(Strip(text.bytes, chars)), text.is_safe);
}

Value ReplaceFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("replace", {"old", "new", "count"}, 2);
  const int64_t count =
      bound[2] == nullptr || bound[2]->is_none() ? -1 : ToInteger(*bound[2], "replace: count");
  const std::string text = ToString(runtime, self);
  const std::string old_part = ToString(runtime, *bound[0]),
                    new_part = ToString(runtime, *bound[1]);
  // Charges before the text is made, because every byte could become a new_part.
  runtime.Charge(static_cast<int64_t>(text.size() + (text.size() + 1) * new_part.size() /
                                                        std::max<size_t>(old_part.size(), 1)));
  return runtime.MakeText(Replace(text, old_part, new_part, count));
}

// Returns the indentation that an argument names: a text, or a number of spaces.
std::string Indentation(const Value& argument, std::string_view parameter, int64_t max_width) {
  if (argument.text() != nullptr) return argument.text()->bytes;
  const int64_t width = ToInteger(argument, parameter);
  if (width > max_width) FailLimit(parameter, " ", width, " exceeds ", max_width);
  return std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
}

Value Indent(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("indent", {"width", "first", "blank"});
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  const std::string text = TextArgument(self, "indent: value") + "\n";
  constexpr int64_t kMaxWidth = 10'000;
  const std::string indent =
      bound[0] == nullptr ? "    " : Indentation(*bound[0], "indent: width", kMaxWidth);
  const bool indents_first = bound[1] != nullptr && IsTrue(*bound[1]);
  const bool indents_blank = bound[2] != nullptr && IsTrue(*bound[2]);
  const std::vector<std::string_view> lines = SplitLines(text);
  runtime.Charge(static_cast<int64_t>(text.size() + lines.size() * indent.size()));
  std::string out = indents_first ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (indents_blank || !lines[i].empty())) out += indent;
    out += lines[i];
  }
  return runtime.MakeText(std::move(out), self.text()->is_safe);
}

Value StringFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("string", {});
  if (self.text() != nullptr) return self;
  return runtime.MakeText(ToString(runtime, self));
}

Value Safe(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("safe", {});
  return runtime.MakeText(ToString(runtime, self), true);
}

Value Escape(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("escape", {});
  if (self.text() != nullptr && self.text()->is_safe) return self;
  return runtime.MakeText(EscapeHtml(ToString(runtime, self)), true);
}

Value Default(Runtime&, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("default", {"default_value", "boolean"});
  const bool replaces_false = bound[1] != nullptr && IsTrue(*bound[1]);
  if (!self.is_undefined() && !(replaces_false && !IsTrue(self))) return self;
  return bound[0] == nullptr ? Value::OfText("") : *bound[0];
}

Value Abs(Runtime&, const Value& self, const Arguments& arguments) {
  arguments.Bind("abs", {});
  if (const auto* d = self.As<double>()) return Value(std::fabs(*d));
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  const int64_t value = ToInteger(self, "abs: value");
  int64_t negated = 0;
  if (value >= 0) return Value(value);
  if (__builtin_sub_overflow(int64_t{0}, value, &negated))
    Fail("abs: result has more than 63 bits");
  return Value(negated);
}

// Cleans texts as in float("1_0.5") and int("0x1f", 16): white space around and underscores between
// digits are allowed.
std::optional<std::string> CleanNumber(std::string_view text) {
  std::string digits;
  text = Strip(text);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') {
      return std::nullopt;
    }
  }
  return digits;
}

std::optional<double> ParseFloat(std::string_view text) {
  double value = 0;
  const auto digits = CleanNumber(text);
  if (!digits || digits->find_first_of("xX(") != std::string::npos) return std::nullopt;
  if (!absl::SimpleAtod(*digits, &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseInt(std::string_view text, int64_t base) {
  auto digits = CleanNumber(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool is_negative = digits->front() == '-';
  if (is_negative || digits->front() == '+') digits->erase(0, 1);
  if (digits->size() > 2 && (*digits)[0] == '0') {
    const char kind = static_cast<char>((*digits)[1] | 0x20);
    const int64_t prefix_base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix_base != 0 && (base == prefix_base || base == 0)) {
      digits->erase(0, 2);
      base = prefix_base;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || digits->empty() ||
      !std::isalnum(static_cast<unsigned char>((*digits)[0]))) {
    return std::nullopt;
  }
  if (is_negative) digits->insert(0, "-");
  int64_t value = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(digits->data(), end, value, static_cast<int>(base));
  if (result.ec == std::errc::result_out_of_range) Fail("int: ", *digits, " has more than 63 bits");
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

Value Int(Runtime&, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("int", {"default", "base"});
  const Value fallback = bound[0] == nullptr ? Value(int64_t{0}) : *bound[0];
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  std::optional<int64_t> value;
  if (const Text* text = self.text()) {
    value = ParseInt(text->bytes, bound[1] == nullptr ? 10 : ToInteger(*bound[1], "int: base"));
    if (!value) {
      const auto number = ParseFloat(text->bytes);
      if (number) value = TruncateFloat(*number);
    }
  } else if (const auto* d = self.As<double>()) {
    value = TruncateFloat(*d);
  } else if (IsNumber(self)) {
    value = ToInteger(self, "int");
  }
  return value ? Value(*value) : fallback;
}

Value Float(Runtime&, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("float", {"default"});
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  if (IsNumber(self)) return Value(ToDouble(self));
  std::optional<double> value;
  if (const Text* text = self.text()) value = ParseFloat(text->bytes);
  if (value) return Value(*value);
  return bound[0] == nullptr ? Value(0.0) : *bound[0];
}

Value Round(Runtime&, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("round", {"precision", "method"});
  const int64_t precision = bound[0] == nullptr ? 0 : ToInteger(*bound[0], "round: precision");
  const std::string method =
      bound[1] == nullptr ? "common" : TextArgument(*bound[1], "round: method");
  if (method != "common" && method != "ceil" && method != "floor") {
    Fail("method must be common, ceil or floor");
  }
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  if (!IsNumber(self)) Fail("round: value is ", TypeName(self), ", not a number");
  constexpr int64_t kMaxPrecision = 300;
  if (precision < 0 || precision > kMaxPrecision)
    Fail("round: precision ", precision, " is not from 0 to 300");
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = ToDouble(self) * scale;
    return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (self.As<double>() == nullptr) return Value(ToInteger(self, "round"));
  const double value = *self.As<double>();
  if (!std::isfinite(value)) return self;
  // printf rounds the exact binary value, as Python does.
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value);
  return Value(std::strtod(buffer, nullptr));
}

Value ToJsonFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound =
      arguments.Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] != nullptr && IsTrue(*bound[0]);
  style.sort_keys = bound[3] != nullptr && IsTrue(*bound[3]);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    constexpr int64_t kMaxIndent = 100;
    style.is_indented = true;
    style.indent = Indentation(*bound[1], "tojson: indent", kMaxIndent);
  }
  style.item_separator = style.is_indented ? "," : ", ";
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const std::vector<Value> separators = runtime.Iterate(*bound[2]);
    if (separators.size() != 2) Fail("tojson: separators has ", separators.size(), " parts, not 2");
    style.item_separator = TextArgument(separators[0], "tojson: separators");
    style.key_separator = TextArgument(separators[1], "tojson: separators");
  }
  return runtime.MakeText(ToJson(runtime, self, style));
}

Value WordCount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("wordcount", {});
  int64_t count = 0;
  bool is_in_word = false;
  const std::string text = ToString(runtime, self);
  for (const std::string_view character : CodePoints(text)) {
    const bool is_word = character == "_" || HasProperty(character, TextProperty::kAlphaNumeric);
    count += is_word && !is_in_word ? 1 : 0;
    is_in_word = is_word;
  }
  return Value(count);
}

Value Format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Text format = SoftText(runtime, self);
  if (arguments.keywords.empty()) {
    return FormatPercent(runtime, format, arguments.positional, nullptr);
  }
  if (!arguments.positional.empty())
    Fail("can't handle positional and keyword arguments at the same time");
  Dict named;
  for (const auto& [name, value] : arguments.keywords) {
    named.items.emplace_back(runtime.MakeText(name), value);
  }
  return FormatPercent(runtime, format, {}, &named);
}

Value Center(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("center", {"width"});
  const std::string text = ToString(runtime, self);
  const int64_t width = bound[0] == nullptr ? 80 : ToInteger(*bound[0], "center: width");
  const int64_t length = NumCodePoints(text);
  if (width <= length) return runtime.MakeText(text);
  const int64_t padding = width - length;
  runtime.Charge(padding);
  const int64_t left = padding / 2 + (padding & width & 1);
  return runtime.MakeText(std::string(static_cast<size_t>(left), ' ') + text +
                          std::string(static_cast<size_t>(padding - left), ' '));
}

Value Truncate(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("truncate", {"length", "killwords", "end", "leeway"});
  const std::string text = ToString(runtime, self);
  const int64_t length = bound[0] == nullptr ? 255 : ToInteger(*bound[0], "truncate: length");
  const std::string end = bound[2] == nullptr ? "..." : TextArgument(*bound[2], "truncate: end");
  const int64_t leeway =
      bound[3] == nullptr || bound[3]->is_none() ? 5 : ToInteger(*bound[3], "truncate: leeway");
  const int64_t end_length = NumCodePoints(end);
  if (length < end_length) Fail("expected length >= ", end_length, ", got ", length);
  if (leeway < 0) Fail("expected leeway >= 0, got ", leeway);
  if (NumCodePoints(text) - leeway <= length) return runtime.MakeText(text);
  std::string cut = text.substr(0, ByteOffset(text, length - end_length));
  const bool kills_words = bound[1] != nullptr && IsTrue(*bound[1]);
  if (const size_t space = cut.rfind(' '); !kills_words && space != std::string::npos)
    cut.resize(space);
  return runtime.MakeText(cut + end);
}

}  // namespace

Builtin FindFilter(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kFilters[] = {
      {"abs", Abs},
      {"capitalize", Converted<Capitalize>},
      {"center", Center},
      {"d", Default},
      {"default", Default},
      {"e", Escape},
      {"escape", Escape},
      {"float", Float},
      {"format", Format},
      {"indent", Indent},
      {"int", Int},
      {"lower", Converted<ToLower>},
      {"replace", ReplaceFilter},
      {"round", Round},
      {"safe", Safe},
      {"string", StringFilter},
      {"title", Title},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"upper", Converted<ToUpper>},
      {"wordcount", WordCount},
  };
  const Builtin filter = FindIn(kFilters, name);
  return filter != nullptr ? filter : FindSequenceFilter(name);
}

}  // namespace taopd::jinja
