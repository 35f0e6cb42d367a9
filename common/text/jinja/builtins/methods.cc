// The methods of Python's str, dict, list and tuple.
#include <algorithm>

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

std::optional<std::string_view> OptionalText(const Value* value, std::string_view parameter) {
  if (value == nullptr || value->is_none()) return std::nullopt;
  return std::string_view(TextArgument(*value, parameter));
}

using StripFunction = std::string_view (*)(std::string_view, std::optional<std::string_view>);
template <StripFunction strip>
Value Stripped(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string_view name = strip == StripLeft    ? "lstrip"
                                : strip == StripRight ? "rstrip"
                                                      : "strip";
  const auto bound = arguments.Bind(name, {"chars"});
  return runtime.MakeText(
      std::string(strip(self.text()->bytes, OptionalText(bound[0], Concat(name, ": chars")))));
}

Value MakeList(Runtime& runtime, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(runtime.MakeText(std::string(part)));
  return runtime.MakeSequence(std::move(items));
}

template <bool from_right>
Value SplitMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("split", {"sep", "maxsplit"});
  const auto separator = OptionalText(bound[0], "split: sep");
  if (separator && separator->empty()) Fail("empty separator");
  const int64_t max_splits = bound[1] == nullptr ? -1 : ToInteger(*bound[1], "split: maxsplit");
  runtime.Scan(self.text()->bytes.size() * (separator && from_right ? separator->size() : 1));
  return MakeList(runtime, Split(self.text()->bytes, separator, max_splits, from_right));
}
Value SplitLinesMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("splitlines", {});
  return MakeList(runtime, SplitLines(self.text()->bytes));
}

// Splits at the first separator, or at the last if from_right: before, separator, after.
template <bool from_right>
Value Partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("partition", {"sep"}, 1);
  const std::string& separator = TextArgument(*bound[0], "partition: sep");
  if (separator.empty()) Fail("empty separator");
  const std::string& text = self.text()->bytes;
  runtime.Scan(text.size() * (from_right ? separator.size() : 1));
  const size_t at = from_right ? text.rfind(separator) : Find(text, separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {runtime.MakeText(""), runtime.MakeText("")};
    parts.insert(from_right ? parts.end() : parts.begin(), self);
  } else {
    parts = {runtime.MakeText(text.substr(0, at)), *bound[0],
             runtime.MakeText(text.substr(at + separator.size()))};
  }
  return runtime.MakeSequence(std::move(parts), SequenceType::kTuple);
}

// Returns the part of the text that the optional arguments `start` and `end` select, in bytes.
std::pair<size_t, size_t> Window(const std::string& text, const Value* start, const Value* end) {
  if (start == nullptr && end == nullptr) return {0, text.size()};
  const int64_t length = NumCodePoints(text);
  auto offset = [&](const Value* index, int64_t absent) {
    int64_t at = index == nullptr || index->is_none() ? absent : ToInteger(*index, "index");
    if (at < 0) at += length;
    return ByteOffset(text, std::clamp<int64_t>(at, 0, length));
  };
  return {offset(start, 0), offset(end, length)};
}

template <bool is_prefix>
Value Affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound =
      arguments.Bind(is_prefix ? "startswith" : "endswith", {"affix", "start", "end"}, 1);
  const std::string& text = self.text()->bytes;
  const auto [begin, end] = Window(text, bound[1], bound[2]);
  if (begin > end) return Value(false);
  const std::string_view window = std::string_view(text).substr(begin, end - begin);
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->is_tuple()) affixes = bound[0]->sequence()->items;
  for (const Value& affix : affixes) {
    const std::string& part =
        TextArgument(affix, is_prefix ? "startswith: prefix" : "endswith: suffix");
    runtime.Step();
    if (is_prefix ? window.starts_with(part) : window.ends_with(part)) return Value(true);
  }
  return Value(false);
}

// Returns the position of a part in code points. If it does not occur, returns -1, or fails if it
// must occur.
template <bool from_right, bool must_occur>
Value Locate(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("find", {"sub", "start", "end"}, 1);
  const std::string& text = self.text()->bytes;
  const std::string& part = TextArgument(*bound[0], "find: sub");
  const auto [begin, end] = Window(text, bound[1], bound[2]);
  size_t at = std::string_view::npos;
  if (begin <= end) {
    const std::string_view window = std::string_view(text).substr(begin, end - begin);
    runtime.Scan(text.size() * (from_right ? std::max<size_t>(part.size(), 1) : 1));
    at = from_right ? window.rfind(part) : Find(window, part);
  }
  if (at != std::string_view::npos)
    return Value(NumCodePoints(std::string_view(text).substr(0, begin + at)));
  if (must_occur) Fail("substring not found");
  return Value(int64_t{-1});
}

Value Count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("count", {"sub", "start", "end"}, 1);
  const std::string& text = self.text()->bytes;
  const std::string& part = TextArgument(*bound[0], "count: sub");
  const auto [begin, end] = Window(text, bound[1], bound[2]);
  if (begin > end) return Value(int64_t{0});
  const std::string_view window = std::string_view(text).substr(begin, end - begin);
  runtime.Scan(window.size());
  if (part.empty()) return Value(NumCodePoints(window) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = Find(window, part, at)) != std::string_view::npos; at += part.size())
    ++count;
  return Value(count);
}

Value ReplaceMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (!arguments.keywords.empty()) Fail("str.replace() takes no keyword arguments");
  const auto bound = arguments.Bind("replace", {"old", "new", "count"}, 2);
  TextArgument(*bound[0], "replace: old");
  TextArgument(*bound[1], "replace: new");
  return FindFilter("replace")(runtime, self, arguments);
}

Value JoinMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("join", {"iterable"}, 1);
  std::string joined;
  bool is_first = true;
  for (const Value& item : runtime.Iterate(*bound[0])) {
    if (!is_first) joined += self.text()->bytes;
    is_first = false;
    if (item.text() == nullptr)
      Fail("sequence item: expected str instance, ", TypeName(item), " found");
    joined += item.text()->bytes;
    runtime.Charge(static_cast<int64_t>(item.text()->bytes.size() + self.text()->bytes.size()));
  }
  return runtime.MakeText(std::move(joined));
}

using Convert = std::string (*)(std::string_view);
template <Convert convert>
Value ConvertedMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("method", {});
  return runtime.MakeText(convert(self.text()->bytes));
}
template <TextProperty property>
Value Is(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("method", {});
  runtime.Scan(self.text()->bytes.size());
  return Value(HasProperty(self.text()->bytes, property));
}

template <bool is_prefix>
Value RemoveAffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind(is_prefix ? "removeprefix" : "removesuffix", {"affix"}, 1);
  const std::string& affix = TextArgument(*bound[0], "affix");
  std::string_view text = self.text()->bytes;
  if (is_prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!is_prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return runtime.MakeText(std::string(text));
}

// Supports {} and {0} and {name}, without conversions or format specifications.
Value FormatMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string& text = self.text()->bytes;
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') Fail("Single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t close = text.find('}', i);
    if (close == std::string::npos) Fail("Single '{' encountered in format string");
    const std::string field = text.substr(i + 1, close - i - 1);
    i = close;
    const std::optional<size_t> number = ParseIndex(field);
    if (field.empty() || number) {
      const size_t index = number ? *number : next++;
      if (index >= arguments.positional.size()) Fail("Replacement index ", index, " out of range");
      out += ToString(runtime, arguments.positional[index]);
      continue;
    }
    const auto found = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                    [&](const auto& keyword) { return keyword.first == field; });
    if (found == arguments.keywords.end())
      Fail("format field '", field, "' is not given or not supported");
    out += ToString(runtime, found->second);
  }
  return runtime.MakeText(std::move(out));
}

Value Keys(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("keys", {});
  return runtime.MakeSequence(runtime.Iterate(self), SequenceType::kKeys);
}
Value Values(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("values", {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict()->items) values.push_back(value);
  return runtime.MakeSequence(std::move(values), SequenceType::kValues);
}
Value DictItems(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("items", {});
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict()->items) {
    pairs.push_back(runtime.MakeSequence({key, value}, SequenceType::kTuple));
  }
  return runtime.MakeSequence(std::move(pairs), SequenceType::kItems);
}
Value Get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (!arguments.keywords.empty()) Fail("dict.get() takes no keyword arguments");
  const auto bound = arguments.Bind("get", {"key", "default"}, 1);
  if (const Value* found = FindKey(runtime, *self.dict(), *bound[0])) return *found;
  return bound[1] == nullptr ? Value(None{}) : *bound[1];
}
Value Copy(Runtime&, const Value& self, const Arguments& arguments) {
  arguments.Bind("copy", {});
  return self;  // immutable
}

Value ListIndex(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("index", {"value"}, 1);
  const auto& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (IsTrue(Apply(runtime, Operator::kEqual, items[i], *bound[0])))
      return Value(static_cast<int64_t>(i));
  }
  Fail("value is not in list");
}
Value ListCount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("count", {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.sequence()->items) {
    count += IsTrue(Apply(runtime, Operator::kEqual, item, *bound[0])) ? 1 : 0;
  }
  return Value(count);
}

}  // namespace

Builtin FindTextMethod(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kMethods[] = {
      {"strip", Stripped<Strip>},
      {"lstrip", Stripped<StripLeft>},
      {"rstrip", Stripped<StripRight>},
      {"split", SplitMethod<false>},
      {"rsplit", SplitMethod<true>},
      {"splitlines", SplitLinesMethod},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"startswith", Affix<true>},
      {"endswith", Affix<false>},
      {"find", Locate<false, false>},
      {"rfind", Locate<true, false>},
      {"index", Locate<false, true>},
      {"rindex", Locate<true, true>},
      {"count", Count},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"upper", ConvertedMethod<ToUpper>},
      {"lower", ConvertedMethod<ToLower>},
      {"title", ConvertedMethod<ToTitle>},
      {"capitalize", ConvertedMethod<Capitalize>},
      {"islower", Is<TextProperty::kLower>},
      {"isupper", Is<TextProperty::kUpper>},
      {"isalpha", Is<TextProperty::kAlpha>},
      {"isdigit", Is<TextProperty::kDigit>},
      {"isnumeric", Is<TextProperty::kDigit>},
      {"isalnum", Is<TextProperty::kAlphaNumeric>},
      {"isspace", Is<TextProperty::kSpace>},
      {"removeprefix", RemoveAffix<true>},
      {"removesuffix", RemoveAffix<false>},
      {"format", FormatMethod},
  };
  return FindIn(kMethods, name);
}

Builtin FindDictMethod(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kMethods[] = {
      {"keys", Keys}, {"values", Values}, {"items", DictItems}, {"get", Get}, {"copy", Copy}};
  return FindIn(kMethods, name);
}

Builtin FindListMethod(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kMethods[] = {
      {"index", ListIndex}, {"count", ListCount}, {"copy", Copy}};
  return FindIn(kMethods, name);
}

}  // namespace taopd::jinja
