#include "common/text/jinja/values/format.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/values/python_text.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

void AppendHex(char32_t c, int digits, const char* prefix, std::string* out) {
  absl::StrAppendFormat(out, "%s%0*x", prefix, digits, static_cast<uint32_t>(c));
}

class ReprWriter {
 public:
  explicit ReprWriter(Runtime& runtime) : runtime_(runtime) {}

  void Write(const Value& value) {
    runtime_.Step();
    if (++depth_ > kMaxValueDepth)
      FailLimit("value nested deeper than the limit of ", kMaxValueDepth);
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_none()) {
      out_ += "None";
    } else if (const auto* b = value.As<bool>()) {
      out_ += *b ? "True" : "False";
    } else if (const auto* i = value.As<int64_t>()) {
      out_ += std::to_string(*i);
    } else if (const auto* d = value.As<double>()) {
      out_ += FormatFloat(*d);
    } else if (const Text* text = value.text()) {
      const std::string quoted = QuoteText(text->bytes);
      out_ += text->is_safe ? "Markup(" + quoted + ")" : quoted;
    } else if (const Sequence* sequence = value.sequence()) {
      WriteSequence(*sequence);
    } else if (const Dict* dict = value.dict()) {
      WriteDict(*dict);
    } else if (const Namespace* name_space = value.name_space()) {
      WriteNamespace(*name_space);
    } else if (const Loop* loop = value.loop()) {
      out_ += Concat("<LoopContext ", loop->index0 + 1, "/", loop->items.size(), ">");
    } else if (const Callable* callable = value.callable()) {
      out_ += Concat("<", callable->type_name, " ", QuoteText(callable->name), ">");
    }
    --depth_;
    if (static_cast<int64_t>(out_.size()) > kMaxOutputBytes) {
      FailLimit("text longer than the limit of ", kMaxOutputBytes, " bytes");
    }
  }
  std::string Take() {
    runtime_.Charge(static_cast<int64_t>(out_.size()));
    return std::move(out_);
  }

 private:
  void WriteItems(const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      Write(items[i]);
    }
  }
  void WriteSequence(const Sequence& sequence) {
    switch (sequence.type) {
      case SequenceType::kTuple:
        out_ += '(';
        WriteItems(sequence.items);
        out_ += sequence.items.size() == 1 ? ",)" : ")";
        return;
      case SequenceType::kRange:
        out_ += Concat("range(", sequence.range[0], ", ", sequence.range[1]);
        if (sequence.range[2] != 1) out_ += Concat(", ", sequence.range[2]);
        out_ += ')';
        return;
      case SequenceType::kIterator:
        out_ += "<generator object>";
        return;
      default:
        break;
    }
    const bool is_view = sequence.type != SequenceType::kList;
    if (is_view) out_ += Concat(TypeName(Value(std::make_shared<const Sequence>(sequence))), "(");
    out_ += '[';
    WriteItems(sequence.items);
    out_ += is_view ? "])" : "]";
  }
  void WriteDict(const Dict& dict) {
    out_ += '{';
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      Write(dict.items[i].first);
      out_ += ": ";
      Write(dict.items[i].second);
    }
    out_ += '}';
  }
  void WriteNamespace(const Namespace& name_space) {
    out_ += "<Namespace {";
    for (size_t i = 0; i < name_space.attributes.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += QuoteText(name_space.attributes[i].first) + ": ";
      Write(name_space.attributes[i].second);
    }
    out_ += "}>";
  }

  Runtime& runtime_;
  std::string out_;
  int depth_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void Write(const Value& value) {
    runtime_.Step();
    if (const Text* text = value.text()) {
      WriteText(text->bytes);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (const auto* b = value.As<bool>()) {
      out_ += *b ? "true" : "false";
    } else if (const auto* i = value.As<int64_t>()) {
      out_ += std::to_string(*i);
    } else if (const auto* d = value.As<double>()) {
      WriteFloat(*d);
    } else if (value.is_list() || value.is_tuple()) {
      const std::vector<Value>& items = value.sequence()->items;
      WriteItems('[', ']', items.size(), [&](size_t i) { Write(items[i]); });
    } else if (const Dict* dict = value.dict()) {
      WriteDict(*dict);
    } else {
      Fail("Object of type ", TypeName(value), " is not JSON serializable");
    }
    if (static_cast<int64_t>(out_.size()) > kMaxOutputBytes) {
      FailLimit("JSON longer than the limit of ", kMaxOutputBytes, " bytes");
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  void WriteFloat(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += FormatFloat(value);
    }
  }
  void WriteText(std::string_view text) {
    out_ += '"';
    for (const std::string_view character : CodePoints(text)) {
      const char32_t c = FirstCodePoint(character);
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      static constexpr std::string_view kLetters = "\"\\nrtbf";
      if (const size_t at = c < 128 ? kEscaped.find(character[0]) : std::string_view::npos;
          at != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        AppendHex(c, 4, "\\u", &out_);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        AppendHex(0xD800 + ((c - 0x10000) >> 10), 4, "\\u", &out_);
        AppendHex(0xDC00 + ((c - 0x10000) & 0x3FF), 4, "\\u", &out_);
      } else {
        out_ += character;
      }
    }
    out_ += '"';
  }
  void NewLine() {
    if (!style_.is_indented) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += style_.indent;
  }
  // write(i) writes an item.
  template <typename WriteItem>
  void WriteItems(char open, char close, size_t num_items, const WriteItem& write) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < num_items; ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine();
      write(i);
    }
    --level_;
    if (num_items > 0) NewLine();
    out_ += close;
  }
  std::string KeyText(const Value& key) {
    if (const Text* text = key.text()) return text->bytes;
    if (key.is_none()) return "null";
    if (const auto* b = key.As<bool>()) return *b ? "true" : "false";
    if (const auto* i = key.As<int64_t>()) return std::to_string(*i);
    if (const auto* d = key.As<double>()) return FormatFloat(*d);
    Fail("keys must be str, int, float, bool or None, not ", TypeName(key));
  }
  void WriteDict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return IsLess(a->first, b->first); });
    }
    WriteItems('{', '}', items.size(), [&](size_t i) {
      WriteText(KeyText(items[i]->first));
      out_ += style_.key_separator;
      Write(items[i]->second);
    });
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const double magnitude = std::fabs(value);
  // repr uses an exponent of two digits at 1e16 and above, and below 1e-4.
  const bool has_exponent = magnitude != 0 && (magnitude >= 1e16 || magnitude < 1e-4);
  const auto format = has_exponent ? std::chars_format::scientific : std::chars_format::fixed;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, format);
  std::string text(buffer, result.ptr);
  if (!has_exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string QuoteText(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : CodePoints(text)) {
    const char32_t c = FirstCodePoint(character);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out += character;
    } else if (c < 0x100) {
      AppendHex(c, 2, "\\x", &out);
    } else if (c < 0x10000) {
      AppendHex(c, 4, "\\u", &out);
    } else {
      AppendHex(c, 8, "\\U", &out);
    }
  }
  return out += quote;
}

std::string Repr(Runtime& runtime, const Value& value) {
  ReprWriter writer(runtime);
  writer.Write(value);
  return writer.Take();
}

std::string ToString(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return "";
  if (const Text* text = value.text()) {
    runtime.Charge(static_cast<int64_t>(text->bytes.size()));
    return text->bytes;
  }
  return Repr(runtime, value);
}

std::string ToJson(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.Write(value);
  std::string text = writer.Take();
  runtime.Charge(static_cast<int64_t>(text.size()));
  return text;
}

}  // namespace taopd::jinja
