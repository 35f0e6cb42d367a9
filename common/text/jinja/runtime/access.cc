// Look-ups of attributes, items and slices, in the order in which jinja2's sandbox tries them.
#include <algorithm>
#include <array>

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

// Methods that change their object: the immutable sandbox refuses to call them.
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

std::string ObjectName(const Value& value) {
  return value.is_none() ? "None" : Concat(TypeName(value), " object");
}

Value UndefinedAttribute(Runtime& runtime, const Value& value, std::string_view name) {
  runtime.Charge(64);
  return Value::OfUndefined(Concat("'", ObjectName(value), "' has no attribute '", name, "'"));
}

// Returns the value of an attribute that the sandbox refuses: undefined, with the reason.
Value UnsafeAttribute(const Value& value, std::string_view name) {
  return Value::OfUndefined(
      Concat("access to attribute '", name, "' of '", TypeName(value), "' object is unsafe."));
}

// The object is held through a namespace, which is emptied when the rendering ends. Otherwise a
// list of a method of a list of a method ... could be deeper than the stack allows when it is
// freed.
Value BindMethod(Runtime& runtime, const Value& self, const std::string& name, Builtin method) {
  const Value holder = runtime.MakeNamespace();
  holder.name_space()->attributes.emplace_back("self", self);
  return runtime.MakeCallable("builtin_function_or_method", name,
                              [holder, method](Runtime& r, const Arguments& arguments) {
                                const Value object = holder.name_space()->attributes[0].second;
                                return method(r, object, arguments);
                              });
}

Value LoopAttribute(Runtime& runtime, const std::shared_ptr<Loop>& loop, const std::string& name) {
  const auto length = static_cast<int64_t>(loop->items.size());
  if (name == "index") return Value(loop->index0 + 1);
  if (name == "index0") return Value(loop->index0);
  if (name == "revindex") return Value(length - loop->index0);
  if (name == "revindex0") return Value(length - loop->index0 - 1);
  if (name == "first") return Value(loop->index0 == 0);
  if (name == "last") return Value(loop->index0 == length - 1);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(loop->depth0 + 1);
  if (name == "depth0") return Value(loop->depth0);
  if (name == "previtem") {
    if (loop->index0 == 0) return Value::OfUndefined("there is no previous item");
    return loop->items[static_cast<size_t>(loop->index0 - 1)];
  }
  if (name == "nextitem") {
    if (loop->index0 >= length - 1) return Value::OfUndefined("there is no next item");
    return loop->items[static_cast<size_t>(loop->index0 + 1)];
  }
  if (name == "cycle") {
    return runtime.MakeCallable("method", name, [loop](Runtime&, const Arguments& arguments) {
      if (arguments.positional.empty()) Fail("no items for cycling given");
      const auto index = static_cast<size_t>(loop->index0) % arguments.positional.size();
      return arguments.positional[index];
    });
  }
  if (name == "changed") {
    return runtime.MakeCallable("method", name, [loop](Runtime& r, const Arguments& arguments) {
      const auto& now = arguments.positional;
      for (const Value& value : now) ChargeComparison(r, value);
      const auto& before = loop->last_changed;
      const bool is_same = loop->has_changed && now.size() == before.size() &&
                           std::equal(now.begin(), now.end(), before.begin(), AreEqual);
      loop->last_changed = now;
      loop->has_changed = true;
      return Value(!is_same);
    });
  }
  return Value();
}

// Returns a Python attribute of the object, or nullopt if it has no attribute of this name.
std::optional<Value> PythonAttribute(Runtime& runtime, const Value& value,
                                     const std::string& name) {
  Builtin method = nullptr;
  if (value.text() != nullptr) {
    method = FindTextMethod(name);
  } else if (value.dict() != nullptr) {
    if (std::find(kDictChanges.begin(), kDictChanges.end(), name) != kDictChanges.end()) {
      return UnsafeAttribute(value, name);
    }
    method = FindDictMethod(name);
  } else if (value.sequence() != nullptr) {
    if (value.is_list() &&
        std::find(kListChanges.begin(), kListChanges.end(), name) != kListChanges.end()) {
      return UnsafeAttribute(value, name);
    }
    method = FindListMethod(name);
  } else if (const Namespace* name_space = value.name_space()) {
    for (const auto& [key, attribute] : name_space->attributes) {
      if (key == name) return attribute;
    }
  } else if (value.loop() != nullptr) {
    const Value attribute = LoopAttribute(runtime, *value.As<std::shared_ptr<Loop>>(), name);
    if (!attribute.is_undefined() || name == "previtem" || name == "nextitem") return attribute;
  } else if (value.callable() != nullptr && name == "name") {
    return runtime.MakeText(value.callable()->name);
  }
  if (method == nullptr) return std::nullopt;
  return BindMethod(runtime, value, name, method);
}

// Returns Python's value[index], or nullopt if Python raises a LookupError or TypeError.
std::optional<Value> PythonItem(Runtime& runtime, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    const Value* found = FindKey(runtime, *dict, key);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (const Namespace* name_space = value.name_space();
      name_space != nullptr && key.text() != nullptr) {
    for (const auto& [name, attribute] : name_space->attributes) {
      if (name == key.text()->bytes) return attribute;
    }
    return std::nullopt;
  }
  if (key.As<int64_t>() == nullptr && key.As<bool>() == nullptr) return std::nullopt;
  int64_t index = ToInteger(key, "index");
  if (const Text* text = value.text()) {
    runtime.Scan(text->bytes.size());
    const int64_t length = NumCodePoints(text->bytes);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    const size_t begin = ByteOffset(text->bytes, index);
    const std::string_view rest = std::string_view(text->bytes).substr(begin);
    return runtime.MakeText(std::string(rest.substr(0, ByteOffset(rest, 1))));
  }
  const bool can_index =
      value.is_list() || value.is_tuple() || value.IsSequence(SequenceType::kRange);
  if (!can_index) return std::nullopt;
  const auto& items = value.sequence()->items;
  const auto length = static_cast<int64_t>(items.size());
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return items[static_cast<size_t>(index)];
}

// Returns a slice's bound within [lowest, highest], or `absent` if the slice has none.
int64_t Bound(const Value& bound, int64_t length, int64_t absent, int64_t lowest, int64_t highest) {
  if (bound.is_none()) return absent;
  int64_t index = ToInteger(bound, "slice index");
  if (index < 0) index += length;
  return std::clamp(index, lowest, highest);
}

}  // namespace

Value GetAttribute(Runtime& runtime, const Value& value, const std::string& name) {
  if (value.is_undefined()) Fail(UndefinedMessage(value));
  if (name.starts_with("_") && PythonAttribute(runtime, value, name).has_value()) {
    return UnsafeAttribute(value, name);
  }
  if (const auto attribute = PythonAttribute(runtime, value, name)) return *attribute;
  if (const Dict* dict = value.dict()) {
    runtime.Step(static_cast<int64_t>(dict->items.size() / 8));
    if (const Value* found = dict->Find(std::string_view(name))) return *found;
  }
  return UndefinedAttribute(runtime, value, name);
}

Value GetItem(Runtime& runtime, const Value& value, const Value& key) {
  if (value.is_undefined()) Fail(UndefinedMessage(value));
  if (const auto item = PythonItem(runtime, value, key)) return *item;
  if (const Text* text = key.text()) {
    if (const auto attribute = PythonAttribute(runtime, value, text->bytes)) return *attribute;
    return UndefinedAttribute(runtime, value, text->bytes);
  }
  return Value::OfUndefined(Concat(ObjectName(value), " has no element ", Repr(runtime, key)));
}

Value GetSlice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
               const Value& step) {
  if (value.is_undefined()) Fail(UndefinedMessage(value));
  const bool can_slice = value.text() != nullptr || value.is_list() || value.is_tuple() ||
                         value.IsSequence(SequenceType::kRange);
  if (!can_slice) {
    if (value.dict() == nullptr) Fail("'", TypeName(value), "' object is not subscriptable");
    return Value::OfUndefined(Concat(ObjectName(value), " has no such slice"));
  }
  const int64_t stride = step.is_none() ? 1 : ToInteger(step, "slice step");
  if (stride == 0) Fail("slice step cannot be zero");
  std::vector<std::string_view> characters;
  if (const Text* text = value.text()) {
    runtime.Charge(static_cast<int64_t>(text->bytes.size()));
    if (stride == 1) {  // avoids cutting up the whole text
      const int64_t length = NumCodePoints(text->bytes);
      const int64_t begin = Bound(start, length, 0, 0, length);
      const int64_t end = Bound(stop, length, length, 0, length);
      const size_t from = ByteOffset(text->bytes, begin);
      const std::string_view rest = std::string_view(text->bytes).substr(from);
      return runtime.MakeText(
          std::string(rest.substr(0, ByteOffset(rest, std::max<int64_t>(end - begin, 0)))));
    }
    runtime.Charge(NumCodePoints(text->bytes) * static_cast<int64_t>(sizeof(std::string_view)));
    for (const std::string_view character : CodePoints(text->bytes))
      characters.push_back(character);
  }
  const auto length = static_cast<int64_t>(
      value.text() != nullptr ? characters.size() : value.sequence()->items.size());
  const bool is_forward = stride > 0;
  const int64_t lowest = is_forward ? 0 : -1, highest = is_forward ? length : length - 1;
  const int64_t begin = Bound(start, length, is_forward ? 0 : length - 1, lowest, highest);
  const int64_t end = Bound(stop, length, is_forward ? length : -1, lowest, highest);
  std::string sliced_text;
  std::vector<Value> sliced;
  // The distance to the end shrinks, so a huge stride cannot overflow.
  for (int64_t i = begin; is_forward ? i < end : i > end;) {
    if (value.text() != nullptr) {
      sliced_text += characters[static_cast<size_t>(i)];
    } else {
      sliced.push_back(value.sequence()->items[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (value.text() != nullptr) return runtime.MakeText(std::move(sliced_text));
  const SequenceType type =
      value.sequence()->type == SequenceType::kRange ? SequenceType::kList : value.sequence()->type;
  return runtime.MakeSequence(std::move(sliced), type);
}

int64_t Length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) return NumCodePoints(text->bytes);
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->items.size());
  if (const Loop* loop = value.loop()) return static_cast<int64_t>(loop->items.size());
  if (value.sequence() == nullptr || value.IsSequence(SequenceType::kIterator)) {
    Fail("object of type '", TypeName(value), "' has no len()");
  }
  return static_cast<int64_t>(value.sequence()->items.size());
}

}  // namespace taopd::jinja
