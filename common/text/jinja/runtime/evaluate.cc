// The expressions of a template (see renderer.h).
#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/renderer.h"

namespace taopd::jinja {

Value Renderer::Evaluate(const Expression& expression, const ScopePtr& scope) {
  const Depth depth(this);
  runtime_.Step();
  position_ = expression.position;
  return EvaluateHere(expression, scope);
}

Value Renderer::EvaluateHere(const Expression& expression, const ScopePtr& scope) {
  const auto& children = expression.children;
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return EvaluateName(expression, scope);
    case ExpressionKind::kList:
      return runtime_.MakeSequence(EvaluateAll(children, scope));
    case ExpressionKind::kTuple:
      return runtime_.MakeSequence(EvaluateAll(children, scope), SequenceType::kTuple);
    case ExpressionKind::kDict:
      return EvaluateDict(expression, scope);
    case ExpressionKind::kAttribute: {
      const Value object = Evaluate(*children[0], scope);
      position_ = expression.position;
      return GetAttribute(runtime_, object, expression.text);
    }
    case ExpressionKind::kItem: {
      const Value object = Evaluate(*children[0], scope);
      const Value key = Evaluate(*children[1], scope);
      position_ = expression.position;
      return GetItem(runtime_, object, key);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression, scope);
    case ExpressionKind::kCall:
      return EvaluateCall(expression, scope, nullptr);
    case ExpressionKind::kFilter:
    case ExpressionKind::kTest:
      return ApplyBuiltin(expression, scope, Evaluate(*children[0], scope));
    case ExpressionKind::kNot:
      return Value(!IsTrue(Evaluate(*children[0], scope)));
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive:
      return EvaluateSign(expression, scope);
    case ExpressionKind::kAnd: {
      Value left = Evaluate(*children[0], scope);
      return IsTrue(left) ? Evaluate(*children[1], scope) : left;
    }
    case ExpressionKind::kOr: {
      Value left = Evaluate(*children[0], scope);
      return IsTrue(left) ? left : Evaluate(*children[1], scope);
    }
    case ExpressionKind::kBinary:
      return EvaluateBinary(expression, scope);
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression, scope);
    case ExpressionKind::kConcatenate:
      return Concatenate(runtime_, EvaluateAll(children, scope));
    case ExpressionKind::kConditional:
      return EvaluateConditional(expression, scope);
  }
  return Value();
}

Value Renderer::EvaluateName(const Expression& expression, const ScopePtr& scope) {
  if (const Value* value = scope->Find(expression.name)) return *value;
  const std::string& name = syntax_.names[expression.name];
  if (auto global = FindGlobal(runtime_, name)) return *std::move(global);
  runtime_.Charge(static_cast<int64_t>(name.size()));
  return Value::OfUndefined("'" + name + "' is undefined");
}

Value Renderer::EvaluateDict(const Expression& expression, const ScopePtr& scope) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    Value key = Evaluate(*expression.children[i], scope);
    items.emplace_back(std::move(key), Evaluate(*expression.children[i + 1], scope));
  }
  return runtime_.MakeDict(std::move(items));
}

Value Renderer::EvaluateSlice(const Expression& expression, const ScopePtr& scope) {
  const Value object = Evaluate(*expression.children[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const ExpressionPtr& bound = expression.children[i + 1];
    bounds[i] = bound == nullptr ? Value(None{}) : Evaluate(*bound, scope);
  }
  position_ = expression.position;
  return GetSlice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

Value Renderer::EvaluateCall(const Expression& expression, const ScopePtr& scope,
                             const Value* caller) {
  const Value callee = Evaluate(*expression.children[0], scope);
  Arguments arguments = EvaluateArguments(expression.arguments, scope);
  if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
  position_ = expression.position;
  if (const Loop* loop = callee.loop()) {
    if (!loop->recurse) {
      Fail("The loop must have the 'recursive' marker to be called recursively.");
    }
    return loop->recurse(*arguments.Bind("loop", {"iterable"}, 1)[0]);
  }
  return runtime_.Call(callee, arguments);
}

Value Renderer::EvaluateBinary(const Expression& expression, const ScopePtr& scope) {
  const Value left = Evaluate(*expression.children[0], scope);
  const Value right = Evaluate(*expression.children[1], scope);
  position_ = expression.position;
  return Apply(runtime_, expression.operators[0], left, right);
}

// Evaluates a < b < c as a < b and b < c, with b evaluated once.
Value Renderer::EvaluateCompare(const Expression& expression, const ScopePtr& scope) {
  Value left = Evaluate(*expression.children[0], scope);
  Value result(true);
  for (size_t i = 0; i < expression.operators.size() && IsTrue(result); ++i) {
    Value right = Evaluate(*expression.children[i + 1], scope);
    position_ = expression.position;
    result = Apply(runtime_, expression.operators[i], left, right);
    left = std::move(right);
  }
  return result;
}

Value Renderer::EvaluateSign(const Expression& expression, const ScopePtr& scope) {
  const Value value = Evaluate(*expression.children[0], scope);
  position_ = expression.position;
  if (value.is_undefined()) Fail(UndefinedMessage(value));
  const bool is_negative = expression.kind == ExpressionKind::kNegative;
  if (const auto* d = value.As<double>()) return Value(is_negative ? -*d : *d);
  if (!IsNumber(value)) {
    Fail("bad operand type for unary ", is_negative ? "-" : "+", ": '", TypeName(value), "'");
  }
  const Value zero(int64_t{0});
  return Apply(runtime_, is_negative ? Operator::kSubtract : Operator::kAdd, zero, value);
}

Value Renderer::EvaluateConditional(const Expression& expression, const ScopePtr& scope) {
  const auto& children = expression.children;
  if (IsTrue(Evaluate(*children[1], scope))) return Evaluate(*children[0], scope);
  if (children[2] != nullptr) return Evaluate(*children[2], scope);
  runtime_.Charge(64);
  return Value::OfUndefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

Value Renderer::ApplyBuiltin(const Expression& expression, const ScopePtr& scope,
                             const Value& input) {
  const Arguments arguments = EvaluateArguments(expression.arguments, scope);
  position_ = expression.position;
  return expression.builtin(runtime_, input, arguments);
}

Value Renderer::ApplyFilters(const Expression& expression, const ScopePtr& scope,
                             const Value& input) {
  const ExpressionPtr& inner = expression.children[0];
  return ApplyBuiltin(expression, scope,
                      inner == nullptr ? input : ApplyFilters(*inner, scope, input));
}

std::vector<Value> Renderer::EvaluateAll(const std::vector<ExpressionPtr>& expressions,
                                         const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions)
    values.push_back(Evaluate(*expression, scope));
  return values;
}

Arguments Renderer::EvaluateArguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments evaluated;
  evaluated.positional = EvaluateAll(arguments.positional, scope);
  for (const auto& [name, expression] : arguments.keywords) {
    evaluated.keywords.emplace_back(name, Evaluate(*expression, scope));
  }
  if (arguments.rest != nullptr) {
    for (Value& value : runtime_.Iterate(Evaluate(*arguments.rest, scope))) {
      evaluated.positional.push_back(std::move(value));
    }
  }
  if (arguments.rest_keywords != nullptr) {
    const Value keywords = Evaluate(*arguments.rest_keywords, scope);
    if (keywords.dict() == nullptr) Fail("argument after ** must be a mapping");
    for (const auto& [key, value] : keywords.dict()->items) {
      evaluated.keywords.emplace_back(TextArgument(key, "keyword"), value);
    }
  }
  return evaluated;
}

}  // namespace taopd::jinja
