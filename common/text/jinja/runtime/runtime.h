// The environment of filters, tests and methods: the limits of the current rendering, the functions
// that make values, whose sizes count towards those limits, and calls back into the template. A
// Runtime serves one rendering and is not thread-safe.
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

  // These functions count the cost of the rendering. Each throws TemplateError beyond its limit
  // (limits.h).
  void Step(int64_t num_steps = 1);
  void Charge(int64_t size_bytes);
  // Counts the steps of scanning size_bytes bytes of text.
  void Scan(size_t size_bytes) { Step(static_cast<int64_t>(size_bytes / 64)); }

  Value MakeText(std::string bytes, bool is_safe = false);
  Value MakeSequence(std::vector<Value> items, SequenceType type = SequenceType::kList);
  Value MakeDict(std::vector<std::pair<Value, Value>> items);
  Value MakeNamespace();
  Value MakeCallable(std::string type_name, std::string name,
                     std::function<Value(Runtime&, const Arguments&)> call);

  // Returns the elements that a for loop over the value visits. Consumes the rest of an iterator.
  // Throws if Python cannot iterate over the value.
  std::vector<Value> Iterate(const Value& value);
  // Computes {{ callee(arguments) }}.
  Value Call(const Value& callee, const Arguments& arguments);

  absl::Time now() const { return now_; }
  absl::TimeZone time_zone() const { return time_zone_; }
  // All namespaces of the rendering. They can refer to themselves, so the renderer empties them
  // when it ends.
  const std::vector<std::shared_ptr<Namespace>>& namespaces() const { return namespaces_; }

 private:
  absl::Time now_;
  absl::TimeZone time_zone_;
  int64_t num_steps_ = 0;
  int64_t allocated_bytes_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // Binds the arguments to the parameters `names`: returns the value of each, or null if it is not
  // given. Throws if there are more arguments than parameters, if a keyword is unknown, or if one
  // of the first num_required parameters is missing. `function` is the function's name for
  // messages.
  std::vector<const Value*> Bind(std::string_view function,
                                 std::initializer_list<std::string_view> names,
                                 size_t num_required = 0) const;
};

// Returns the text of a string argument. Throws with the parameter's name for other types.
const std::string& TextArgument(const Value& value, std::string_view parameter);

// A filter, a test or a method, applied to `self`.
using Builtin = Value (*)(Runtime&, const Value& self, const Arguments& arguments);

// Returns the function of that name, or null.
template <typename Function, size_t kSize>
Function FindIn(const std::pair<std::string_view, Function> (&functions)[kSize],
                std::string_view name) {
  for (const auto& [known, function] : functions) {
    if (known == name) return function;
  }
  return nullptr;
}

// These functions find a filter, a test or a method by its name; null if there is none.
Builtin FindFilter(std::string_view name);
Builtin FindTest(std::string_view name);
Builtin FindTextMethod(std::string_view name);
Builtin FindDictMethod(std::string_view name);
Builtin FindListMethod(std::string_view name);
// Finds filters that take or return sequences. FindFilter includes them.
Builtin FindSequenceFilter(std::string_view name);
// Finds a global function by its name: range, namespace, raise_exception, ...; nullopt if there is
// none.
std::optional<Value> FindGlobal(Runtime& runtime, std::string_view name);

// These functions return value.name, value[key] and value[start:stop:step] as jinja2's sandbox
// resolves them. The result is undefined if there is no such attribute or item.
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
// Returns a op b as Python computes it.
Value Apply(Runtime& runtime, Operator op, const Value& a, const Value& b);

// The cost of a comparison grows with the size of its values, and a small expression can make a
// large value, so these functions count the cost towards the rendering's limits before they
// compare.
//
// Counts the steps of one comparison of `value` with any other.
void ChargeComparison(Runtime& runtime, const Value& value);
// Counts the steps of comparing `key` with num_keys others.
void ChargeKeyComparisons(Runtime& runtime, const Value& key, size_t num_keys);
// Returns dict.Find(key).
const Value* FindKey(Runtime& runtime, const Dict& dict, const Value& key);

// Returns a ~ b ~ c ...
Value Concatenate(Runtime& runtime, const std::vector<Value>& parts);
// Returns format % values. If `named` is not null, %(name)s takes its values from it.
Value FormatPercent(Runtime& runtime, const Text& format, const std::vector<Value>& values,
                    const Dict* named);
// Returns len(value). Throws if Python's value has no length.
int64_t Length(const Value& value);

}  // namespace taopd::jinja
