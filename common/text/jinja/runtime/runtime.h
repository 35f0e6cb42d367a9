// What filters, tests and methods get beside their arguments: the limits of this rendering, makers
// of values that are charged to them, and calls back into the template. One rendering, one thread.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

class Runtime {
 public:
  Runtime(absl::Time now, absl::TimeZone time_zone) : now_(now), time_zone_(time_zone) {}

  // Each throws TemplateError beyond its limit (limits.h).
  void Step(int64_t num_steps = 1);
  void Charge(int64_t size_bytes);
  // Steps for looking through so many bytes of text.
  void Scan(size_t size_bytes) { Step(static_cast<int64_t>(size_bytes / 64)); }

  Value MakeText(std::string bytes, bool is_safe = false);
  Value MakeSequence(std::vector<Value> items, SequenceType type = SequenceType::kList);
  Value MakeDict(std::vector<std::pair<Value, Value>> items);
  Value MakeNamespace();
  Value MakeCallable(std::string type_name, std::string name,
                     std::function<Value(Runtime&, const Arguments&)> call);

  // The elements that a for loop over the value would see. Takes what is left of an iterator.
  // Throws where Python's value cannot be iterated over.
  std::vector<Value> Iterate(const Value& value);
  // {{ callee(arguments) }}.
  Value Call(const Value& callee, const Arguments& arguments);

  absl::Time now() const { return now_; }
  absl::TimeZone time_zone() const { return time_zone_; }
  // A namespace can hold itself: to be emptied when the rendering ends.
  const std::vector<std::shared_ptr<Namespace>>& namespaces() const { return namespaces_; }

 private:
  absl::Time now_;
  absl::TimeZone time_zone_;
  int64_t num_steps_ = 0;
  int64_t allocated_bytes_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Arguments given to a call, and their binding to a signature.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // The value of each name, null where it is not given. Throws for more than there are, for unknown
  // names, and when one of the first num_required is missing.
  std::vector<const Value*> Bind(std::string_view function,
                                 std::initializer_list<std::string_view> names,
                                 size_t num_required = 0) const;
};

// The text of a string argument; throws naming the parameter for other types.
const std::string& TextArgument(const Value& value, std::string_view parameter);

// Elements in Python's order after a key function; attribute lookups as `map(attribute=...)` does.
using Builtin = Value (*)(Runtime&, const Value& self, const Arguments& arguments);

// By name; null when there is none.
Builtin FindFilter(std::string_view name);
Builtin FindTest(std::string_view name);
Builtin FindTextMethod(std::string_view name);
Builtin FindDictMethod(std::string_view name);
Builtin FindListMethod(std::string_view name);
// Filters that take or give sequences; part of FindFilter.
Builtin FindSequenceFilter(std::string_view name);
// range, namespace, raise_exception, ...; nullopt when there is none.
std::optional<Value> FindGlobal(Runtime& runtime, std::string_view name);

// value.name and value[key], as jinja2's sandbox resolves them; undefined when there is neither.
Value GetAttribute(Runtime& runtime, const Value& value, const std::string& name);
Value GetItem(Runtime& runtime, const Value& value, const Value& key);
Value GetSlice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
               const Value& step);

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
Value Apply(Runtime& runtime, Operator op, const Value& a, const Value& b);
// a ~ b ~ c
Value Concatenate(Runtime& runtime, const std::vector<Value>& parts);
// "..." % values.
Value FormatPercent(Runtime& runtime, const Text& format, const std::vector<Value>& values,
                    const Dict* named);
int64_t Length(const Value& value);

}  // namespace taopd::jinja
