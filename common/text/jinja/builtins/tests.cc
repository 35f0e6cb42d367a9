// The tests that follow `is`.

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"

namespace taopd::jinja {
namespace {

using Test = bool (*)(const Value& value);

template <Test test>
Value Plain(Runtime&, const Value& self, const Arguments& arguments) {
  arguments.Bind("test", {});
  return Value(test(self));
}

template <Operator op>
Value Compare(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("comparison", {"b"}, 1);
  return Apply(runtime, op, self, *bound[0]);
}

bool IsDefined(const Value& value) { return !value.is_undefined(); }
bool IsUndefined(const Value& value) { return value.is_undefined(); }
bool IsNone(const Value& value) { return value.is_none(); }
bool IsBoolean(const Value& value) { return value.As<bool>() != nullptr; }
bool IsTrueConstant(const Value& value) { return IsBoolean(value) && *value.As<bool>(); }
bool IsFalseConstant(const Value& value) { return IsBoolean(value) && !*value.As<bool>(); }
bool IsInteger(const Value& value) { return value.As<int64_t>() != nullptr; }
bool IsFloat(const Value& value) { return value.As<double>() != nullptr; }
bool IsString(const Value& value) { return value.text() != nullptr; }
bool IsMapping(const Value& value) { return value.dict() != nullptr; }
bool IsEscaped(const Value& value) { return value.text() != nullptr && value.text()->is_safe; }
// Undefined has every method; calling one fails.
bool IsCallable(const Value& value) { return value.callable() != nullptr || value.is_undefined(); }
bool IsIterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr ||
         value.dict() != nullptr || value.loop() != nullptr;
}
bool IsSequence(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         value.is_list() || value.is_tuple() || value.IsSequence(SequenceType::kRange);
}

template <TextProperty property>
Value HasCase(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("test", {});
  return Value(HasProperty(ToString(runtime, self), property));
}

Value DivisibleBy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("divisibleby", {"num"}, 1);
  return Value(!IsTrue(Apply(runtime, Operator::kModulo, self, *bound[0])));
}
// Returns whether the remainder of a division by 2 is this one: 0 for even numbers, 1 for odd ones.
template <int64_t remainder>
Value HasRemainder(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind(remainder == 0 ? "even" : "odd", {});
  if (self.text() != nullptr) Fail("not all arguments converted during string formatting");
  return Value(
      AreEqual(Apply(runtime, Operator::kModulo, self, Value(int64_t{2})), Value(remainder)));
}

// Implements Python's `is`, for which equal small numbers and constants are the same object.
Value SameAs(Runtime&, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("sameas", {"other"}, 1);
  const Value& other = *bound[0];
  if (self.data().index() != other.data().index()) return Value(false);
  if (self.text() != nullptr) {
    return Value(self.text() == other.text() || self.text()->bytes == other.text()->bytes);
  }
  if (self.sequence() != nullptr) return Value(self.sequence() == other.sequence());
  if (self.dict() != nullptr) return Value(self.dict() == other.dict());
  return Value(AreEqual(self, other));
}

Value IsFilter(Runtime&, const Value& self, const Arguments& arguments) {
  arguments.Bind("filter", {});
  return Value(self.text() != nullptr && FindFilter(self.text()->bytes) != nullptr);
}
Value IsTest(Runtime&, const Value& self, const Arguments& arguments) {
  arguments.Bind("test", {});
  return Value(self.text() != nullptr && FindTest(self.text()->bytes) != nullptr);
}

}  // namespace

Builtin FindTest(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kTests[] = {
      {"defined", Plain<IsDefined>},
      {"undefined", Plain<IsUndefined>},
      {"none", Plain<IsNone>},
      {"boolean", Plain<IsBoolean>},
      {"true", Plain<IsTrueConstant>},
      {"false", Plain<IsFalseConstant>},
      {"integer", Plain<IsInteger>},
      {"float", Plain<IsFloat>},
      {"number", Plain<IsNumber>},
      {"string", Plain<IsString>},
      {"mapping", Plain<IsMapping>},
      {"sequence", Plain<IsSequence>},
      {"iterable", Plain<IsIterable>},
      {"callable", Plain<IsCallable>},
      {"escaped", Plain<IsEscaped>},
      {"lower", HasCase<TextProperty::kLower>},
      {"upper", HasCase<TextProperty::kUpper>},
      {"odd", HasRemainder<1>},
      {"even", HasRemainder<0>},
      {"divisibleby", DivisibleBy},
      {"sameas", SameAs},
      {"filter", IsFilter},
      {"test", IsTest},
      {"in", Compare<Operator::kIn>},
      {"==", Compare<Operator::kEqual>},
      {"eq", Compare<Operator::kEqual>},
      {"equalto", Compare<Operator::kEqual>},
      {"!=", Compare<Operator::kNotEqual>},
      {"ne", Compare<Operator::kNotEqual>},
      {">", Compare<Operator::kGreater>},
      {"gt", Compare<Operator::kGreater>},
      {"greaterthan", Compare<Operator::kGreater>},
      {">=", Compare<Operator::kGreaterEqual>},
      {"ge", Compare<Operator::kGreaterEqual>},
      {"<", Compare<Operator::kLess>},
      {"lt", Compare<Operator::kLess>},
      {"lessthan", Compare<Operator::kLess>},
      {"<=", Compare<Operator::kLessEqual>},
      {"le", Compare<Operator::kLessEqual>},
  };
  return FindIn(kTests, name);
}

}  // namespace taopd::jinja
