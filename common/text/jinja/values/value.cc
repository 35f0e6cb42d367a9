#include "common/text/jinja/values/value.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"

namespace taopd::jinja {
namespace {

Value FromJsonAt(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) {
    FailLimit("value nested deeper than the limit of ", kMaxValueDepth);
  }
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value(json.get<bool>());
    case Type::number_integer:
      return Value(json.get<int64_t>());
    case Type::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        Fail("integer ", json.get<uint64_t>(), " has more than 63 bits");
      }
      return Value(json.get<int64_t>());
    case Type::number_float:
      return Value(json.get<double>());
    case Type::string:
      return Value::OfText(json.get_ref<const std::string&>());
    case Type::array: {
      auto list = std::make_shared<Sequence>();
      list->items.reserve(json.size());
      for (const auto& item : json) {
        list->items.push_back(FromJsonAt(item, depth + 1));
        list->depth = std::max(list->depth, 1 + list->items.back().depth());
      }
      return Value(std::shared_ptr<const Sequence>(std::move(list)));
    }
    case Type::object: {
      auto dict = std::make_shared<Dict>();
      dict->items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict->items.emplace_back(Value::OfText(key), FromJsonAt(item, depth + 1));
        dict->depth = std::max(dict->depth, 1 + dict->items.back().second.depth());
      }
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    default:
      return Value(None{});
  }
}

bool SequencesEqual(const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  if (a.type != b.type || a.type == SequenceType::kIterator || a.items.size() != b.items.size()) {
    return false;
  }
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), AreEqual);
}

bool DictsEqual(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& entry) {
    const Value* other = b.Find(entry.first);
    return other != nullptr && AreEqual(entry.second, *other);
  });
}

}  // namespace

const Value* Dict::Find(const Value& key) const {
  if (const Text* text = key.text()) return Find(text->bytes);
  for (const auto& [name, value] : items) {
    if (AreEqual(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    const Text* text = name.text();
    if (text != nullptr && text->bytes == key) return &value;
  }
  return nullptr;
}

int Value::depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Dict* d = dict()) return d->depth;
  return 1;
}

std::string UndefinedMessage(const Value& value) {
  const auto& undefined = *value.As<std::shared_ptr<const Undefined>>();
  return undefined == nullptr ? "a value is undefined" : undefined->message;
}

bool IsTrue(const Value& value) {
  if (const auto* b = value.As<bool>()) return *b;
  if (const auto* i = value.As<int64_t>()) return *i != 0;
  if (const auto* d = value.As<double>()) return *d != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->type == SequenceType::kIterator || !sequence->items.empty();
  }
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return !value.is_undefined() && !value.is_none();
}

bool IsNumber(const Value& value) {
  return value.As<bool>() != nullptr || value.As<int64_t>() != nullptr ||
         value.As<double>() != nullptr;
}

double ToDouble(const Value& value) {
  if (const auto* d = value.As<double>()) return *d;
  return static_cast<double>(ToInteger(value, "number"));
}

int64_t ToInteger(const Value& value, std::string_view what) {
  if (const auto* i = value.As<int64_t>()) return *i;
  if (const auto* b = value.As<bool>()) return *b ? 1 : 0;
  Fail(what, " is ", TypeName(value), ", not an integer");
}

std::optional<int64_t> TruncateFloat(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value > -kLimit && value < kLimit)) return std::nullopt;
  return static_cast<int64_t>(value);
}

bool AreEqual(const Value& a, const Value& b) {
  if (IsNumber(a) && IsNumber(b)) {
    if (a.As<double>() == nullptr && b.As<double>() == nullptr) {
      return ToInteger(a, "") == ToInteger(b, "");
    }
    return ToDouble(a) == ToDouble(b);
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Text* text = a.text()) return text->bytes == b.text()->bytes;
  if (a.sequence() != nullptr) return SequencesEqual(*a.sequence(), *b.sequence());
  if (a.dict() != nullptr) return DictsEqual(*a.dict(), *b.dict());
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  if (a.callable() != nullptr) return a.callable() == b.callable();
  return a.loop() == b.loop();
}

bool IsLess(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) Fail(UndefinedMessage(*value));
  }
  if (IsNumber(a) && IsNumber(b)) {
    if (a.As<double>() == nullptr && b.As<double>() == nullptr) {
      return ToInteger(a, "") < ToInteger(b, "");
    }
    return ToDouble(a) < ToDouble(b);
  }
  // UTF-8 bytes have the same order as code points.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes < b.text()->bytes;
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const auto& left = a.sequence()->items;
    const auto& right = b.sequence()->items;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!AreEqual(left[i], right[i])) return IsLess(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  Fail("'<' not supported between instances of '", TypeName(a), "' and '", TypeName(b), "'");
}

const char* TypeName(const Value& value) {
  if (const Sequence* sequence = value.sequence()) {
    static constexpr const char* kSequences[] = {
        "list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
    return kSequences[static_cast<size_t>(sequence->type)];
  }
  if (const Callable* callable = value.callable()) return callable->type_name.c_str();
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                           "float",     "str",      "",           "dict",
                                           "Namespace", "",         "LoopContext"};
  return kNames[value.data().index()];
}

Value FromJson(const nlohmann::ordered_json& json) { return FromJsonAt(json, 1); }

}  // namespace taopd::jinja
