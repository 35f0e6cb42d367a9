// The values of a template: Python's values, as far as chat templates can make them. Copies share
// their content. Values are immutable, except for namespaces, loops and iterators; a value that may
// contain one of these is not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace taopd::jinja {

class Value;
class Runtime;
struct Arguments;
struct Callable;
struct Loop;
struct Namespace;

// jinja2's undefined: prints as nothing, is false, and fails if it is used in any other way.
struct Undefined {
  std::string message;  // message of the failure
};
struct None {};

struct Text {
  std::string bytes;     // valid UTF-8
  bool is_safe = false;  // markupsafe's Markup, which is already escaped
};

enum class SequenceType : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };

struct Sequence {
  SequenceType type = SequenceType::kList;
  std::vector<Value> items;
  int depth = 1;                 // 1 + the depth of the deepest item
  mutable size_t position = 0;   // for an iterator: the number of items taken
  int64_t range[3] = {0, 0, 1};  // for a range: start, stop, step
};

// Items in the order of insertion. Find scans them, because a message has few keys.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
};

class Value {
 public:
  using Data = std::variant<std::shared_ptr<const Undefined>, None, bool, int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() = default;  // undefined, without a message
  template <typename T>
  requires std::is_constructible_v<Data, T>
  explicit Value(T data) : data_(std::move(data)) {}
  // These values do not count towards a rendering's limits. In a rendering, use the Make functions
  // of Runtime.
  static Value OfText(std::string bytes, bool is_safe = false) {
    return Value(std::make_shared<const Text>(Text{std::move(bytes), is_safe}));
  }
  static Value OfUndefined(std::string message) {
    return Value(std::make_shared<const Undefined>(Undefined{std::move(message)}));
  }

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return data_.index() == 0; }
  bool is_none() const { return As<None>() != nullptr; }
  // Each function returns null if the value has another type.
  const Text* text() const { return Pointer<const Text>(); }
  const Sequence* sequence() const { return Pointer<const Sequence>(); }
  const Dict* dict() const { return Pointer<const Dict>(); }
  Namespace* name_space() const { return Pointer<Namespace>(); }
  const Callable* callable() const { return Pointer<const Callable>(); }
  Loop* loop() const { return Pointer<Loop>(); }
  bool is_list() const { return IsSequence(SequenceType::kList); }
  bool is_tuple() const { return IsSequence(SequenceType::kTuple); }
  bool IsSequence(SequenceType type) const {
    return sequence() != nullptr && sequence()->type == type;
  }
  // Returns the depth of nested sequences and dicts; 1 for a scalar.
  int depth() const;
  const Data& data() const { return data_; }

 private:
  template <typename T>
  T* Pointer() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&data_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Data data_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Callable {
  std::string type_name;  // Python's type name, for messages
  std::string name;
  std::function<Value(Runtime&, const Arguments&)> call;
};

// The variable `loop` of a for statement.
struct Loop {
  std::vector<Value> items;
  int64_t index0 = 0;
  int64_t depth0 = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
  // Renders the body for the items of `iterable`. Empty unless the loop is `recursive`.
  std::function<Value(const Value& iterable)> recurse;
};

// Returns the message of the failure when an undefined value is used. REQUIRES: is_undefined().
std::string UndefinedMessage(const Value& value);
// Returns whether Python's bool(value) is True.
bool IsTrue(const Value& value);
// Returns a == b for values of any types. 1, 1.0 and True are equal.
bool AreEqual(const Value& a, const Value& b);
// Returns a < b. Throws TemplateError if the types have no order in Python.
bool IsLess(const Value& a, const Value& b);
// Returns whether the value is an int, a float or a bool (True is 1).
bool IsNumber(const Value& value);
// REQUIRES: IsNumber(value).
double ToDouble(const Value& value);
// Returns Python's name of the type: "int", "str", "NoneType", ...
const char* TypeName(const Value& value);
// Returns an int or bool as an integer. Throws with the name `what` for other types.
int64_t ToInteger(const Value& value, std::string_view what);
// Returns the number without its fraction, or nullopt if that has more than 63 bits.
std::optional<int64_t> TruncateFloat(double value);

// Converts a JSON value. Throws TemplateError if it is nested too deeply, or if an integer has more
// than 64 bits.
Value FromJson(const nlohmann::ordered_json& json);

}  // namespace taopd::jinja
