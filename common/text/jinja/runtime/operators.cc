// Arithmetic, comparison, membership and concatenation.
#include <algorithm>
#include <cmath>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"

namespace taopd::jinja {
namespace {

constexpr const char* kSymbols[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

const char* Symbol(Operator op) { return kSymbols[static_cast<size_t>(op)]; }

[[noreturn]] void FailOperands(Operator op, const Value& a, const Value& b) {
  if (op == Operator::kAdd && a.text() != nullptr) {
    Fail("can only concatenate str (not \"", TypeName(b), "\") to str");
  }
  Fail("unsupported operand type(s) for ", Symbol(op), ": '", TypeName(a), "' and '", TypeName(b),
       "'");
}

[[noreturn]] void FailOverflow(Operator op) {
  Fail("integer result of ", Symbol(op), " has more than 63 bits");
}

Value RaiseInteger(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) Fail("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      FailOverflow(Operator::kPower);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) FailOverflow(Operator::kPower);
  }
  return Value(result);
}

Value ApplyToIntegers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) Fail("division by zero");
  if (divides && b == -1 && op != Operator::kDivide) {  // INT64_MIN / -1 traps
    if (op == Operator::kModulo) return Value(int64_t{0});
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) FailOverflow(op);
    return Value(result);
  }
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow(op);
      return Value(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow(op);
      return Value(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow(op);
      return Value(result);
    case Operator::kDivide:
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
      return Value(int64_t{a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0)});
    case Operator::kModulo:
      result = a % b;
      return Value(int64_t{result != 0 && (result < 0) != (b < 0) ? result + b : result});
    default:
      return RaiseInteger(a, b);
  }
}

Value ApplyToFloats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSubtract:
      return Value(a - b);
    case Operator::kMultiply:
      return Value(a * b);
    case Operator::kPower:
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) Fail("division by zero");
  if (op == Operator::kDivide) return Value(a / b);
  if (op == Operator::kFloorDivide) return Value(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

Value Repeat(Runtime& runtime, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const int64_t size = value.text() != nullptr
                           ? static_cast<int64_t>(value.text()->bytes.size())
                           : static_cast<int64_t>(value.sequence()->items.size() * sizeof(Value));
  if (size == 0) count = 0;
  if (size > 0 && count > kMaxAllocatedBytes / size) {
    FailLimit("repeating ", size, " bytes ", count, " times exceeds the limit of ",
              kMaxAllocatedBytes);
  }
  runtime.Charge(size * count);  // before the value is made
  if (const Text* text = value.text()) {
    std::string repeated;
    repeated.reserve(static_cast<size_t>(size * count));
    for (int64_t i = 0; i < count; ++i) repeated += text->bytes;
    return runtime.MakeText(std::move(repeated), text->is_safe);
  }
  std::vector<Value> items;
  const auto& part = value.sequence()->items;
  for (int64_t i = 0; i < count; ++i) items.insert(items.end(), part.begin(), part.end());
  return runtime.MakeSequence(std::move(items), value.sequence()->type);
}

bool IsRepeatable(const Value& value) {
  return value.text() != nullptr || value.is_list() || value.is_tuple();
}

bool CountsAsInteger(const Value& value) {
  return value.As<int64_t>() != nullptr || value.As<bool>() != nullptr;
}

Value Add(Runtime& runtime, const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) {
    // Markup escapes the text with which it is joined.
    const bool is_safe = a.text()->is_safe || b.text()->is_safe;
    auto part = [&](const Text& text) {
      return is_safe && !text.is_safe ? EscapeHtml(text.bytes) : text.bytes;
    };
    return runtime.MakeText(part(*a.text()) + part(*b.text()), is_safe);
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    std::vector<Value> items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return runtime.MakeSequence(std::move(items), a.sequence()->type);
  }
  FailOperands(Operator::kAdd, a, b);
}

Value Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  if (a.is_undefined()) Fail(UndefinedMessage(a));
  if (b.is_undefined()) Fail(UndefinedMessage(b));
  if (CountsAsInteger(a) && CountsAsInteger(b))
    return ApplyToIntegers(op, ToInteger(a, ""), ToInteger(b, ""));
  if (IsNumber(a) && IsNumber(b)) return ApplyToFloats(op, ToDouble(a), ToDouble(b));
  if (op == Operator::kAdd) return Add(runtime, a, b);
  if (op == Operator::kMultiply && IsRepeatable(a) && CountsAsInteger(b)) {
    return Repeat(runtime, a, ToInteger(b, ""));
  }
  if (op == Operator::kMultiply && IsRepeatable(b) && CountsAsInteger(a)) {
    return Repeat(runtime, b, ToInteger(a, ""));
  }
  if (op == Operator::kModulo && a.text() != nullptr) {
    std::vector<Value> values = b.is_tuple() ? b.sequence()->items : std::vector<Value>{b};
    return FormatPercent(runtime, *a.text(), values, b.dict());
  }
  FailOperands(op, a, b);
}

void ChargeComparison(Runtime& runtime, const Value& a, const Value& b) {
  ChargeComparison(runtime, a);
  ChargeComparison(runtime, b);
}

bool Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.is_undefined()) Fail(UndefinedMessage(item));
    if (item.text() == nullptr) {
      Fail("'in <string>' requires string as left operand, not ", TypeName(item));
    }
    runtime.Scan(text->bytes.size() * 4);  // searching is slower than copying
    return Find(text->bytes, item.text()->bytes) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    return FindKey(runtime, *dict, item) != nullptr;
  }
  if (container.sequence() == nullptr && !container.is_undefined()) {
    Fail("argument of type '", TypeName(container), "' is not iterable");
  }
  for (const Value& other : runtime.Iterate(container)) {
    ChargeComparison(runtime, item, other);
    if (AreEqual(item, other)) return true;
  }
  return false;
}

}  // namespace

void ChargeComparison(Runtime& runtime, const Value& value) {
  runtime.Step();
  if (const Text* text = value.text()) {
    runtime.Scan(text->bytes.size());
  } else if (const Sequence* sequence = value.sequence()) {
    for (const Value& item : sequence->items) ChargeComparison(runtime, item);
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->items) {
      ChargeKeyComparisons(runtime, key, dict->items.size());
      ChargeComparison(runtime, item);
    }
  }
}

void ChargeKeyComparisons(Runtime& runtime, const Value& key, size_t num_keys) {
  if (key.sequence() == nullptr) return runtime.Step(static_cast<int64_t>(num_keys / 8));
  for (size_t i = 0; i < num_keys; ++i) ChargeComparison(runtime, key);
}

const Value* FindKey(Runtime& runtime, const Dict& dict, const Value& key) {
  ChargeKeyComparisons(runtime, key, dict.items.size());
  return dict.Find(key);
}

Value Apply(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
    case Operator::kNotEqual:
      ChargeComparison(runtime, a, b);
      return Value(AreEqual(a, b) == (op == Operator::kEqual));
    case Operator::kIn:
    case Operator::kNotIn:
      return Value(Contains(runtime, b, a) == (op == Operator::kIn));
    case Operator::kLess:
      ChargeComparison(runtime, a, b);
      return Value(IsLess(a, b));
    case Operator::kGreater:
      ChargeComparison(runtime, a, b);
      return Value(IsLess(b, a));
    case Operator::kLessEqual:  // !(b < a) would be wrong for NaN
      ChargeComparison(runtime, a, b);
      return Value(IsLess(a, b) || AreEqual(a, b));
    case Operator::kGreaterEqual:
      ChargeComparison(runtime, a, b);
      return Value(IsLess(b, a) || AreEqual(a, b));
    default:
      return Arithmetic(runtime, op, a, b);
  }
}

Value Concatenate(Runtime& runtime, const std::vector<Value>& parts) {
  std::string text;
  for (const Value& part : parts) text += ToString(runtime, part);
  return runtime.MakeText(std::move(text));
}

}  // namespace taopd::jinja
