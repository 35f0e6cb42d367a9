#include "common/text/jinja/runtime/renderer.h"

#include <algorithm>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/values/format.h"

namespace taopd::jinja {

Renderer::~Renderer() {
  for (const ScopePtr& scope : captured_) scope->values.clear();
  for (const auto& loop : captured_loops_) {
    loop->items.clear();
    loop->last_changed.clear();
    loop->recurse = nullptr;
  }
  for (const auto& name_space : runtime_.namespaces()) name_space->attributes.clear();
}

Renderer::Depth::Depth(Renderer* renderer) : renderer_(renderer) {
  if (++renderer_->depth_ > kMaxEvaluationDepth) {
    --renderer_->depth_;
    FailLimit("nested evaluation deeper than the limit of ", kMaxEvaluationDepth);
  }
}

Rendering Renderer::Render(const nlohmann::ordered_json& context) {
  if (!context.is_object()) Fail("the context is not an object");
  auto scope = std::make_shared<Scope>(nullptr);
  // Skips names that the template does not mention.
  for (size_t id = 0; id < syntax_.names.size(); ++id) {
    const auto found = context.find(syntax_.names[id]);
    if (found != context.end()) scope->Set(static_cast<NameId>(id), FromJson(*found));
  }
  root_out_ = &rendering_.text;
  captured_.push_back(scope);
  Run(syntax_.body, scope, root_out_);
  return std::move(rendering_);
}

void Renderer::Write(std::string_view text, std::string* out) {
  runtime_.Charge(static_cast<int64_t>(text.size()));
  if (static_cast<int64_t>(out->size() + text.size()) > kMaxOutputBytes) {
    FailLimit("output longer than the limit of ", kMaxOutputBytes, " bytes");
  }
  out->append(text);
}

Renderer::Flow Renderer::Run(const Body& body, const ScopePtr& scope, std::string* out) {
  const Depth depth(this);
  for (const StatementPtr& statement : body) {
    const Flow flow = RunStatement(*statement, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::RunStatement(const Statement& statement, const ScopePtr& scope,
                                      std::string* out) {
  runtime_.Step();
  position_ = statement.position;
  switch (statement.kind) {
    case StatementKind::kText:
      Write(statement.text, out);
      break;
    case StatementKind::kPrint:
      Write(ToString(runtime_, Evaluate(*statement.expression, scope)), out);
      break;
    case StatementKind::kIf:
      return Run(
          IsTrue(Evaluate(*statement.expression, scope)) ? statement.body : statement.else_body,
          scope, out);
    case StatementKind::kFor:
      RunFor(statement, scope, Evaluate(*statement.expression, scope), 0, out);
      break;
    case StatementKind::kSet:
      Assign(statement.target, Evaluate(*statement.expression, scope), scope);
      break;
    case StatementKind::kSetBlock: {
      Value value = runtime_.MakeText(RenderBody(statement.body, scope));
      if (statement.expression != nullptr)
        value = ApplyFilters(*statement.expression, scope, value);
      Assign(statement.target, value, scope);
      break;
    }
    case StatementKind::kMacro:
      scope->Set(statement.target.name, MakeMacro(*statement.macro, scope));
      break;
    case StatementKind::kCall:
      RunCall(statement, scope, out);
      break;
    case StatementKind::kFilter: {
      const Value input = runtime_.MakeText(RenderBody(statement.body, scope));
      Write(ToString(runtime_, ApplyFilters(*statement.expression, scope, input)), out);
      break;
    }
    case StatementKind::kWith:
      RunWith(statement, scope, out);
      break;
    case StatementKind::kGeneration:
      RunGeneration(statement, scope, out);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

std::vector<Value> Renderer::LoopItems(const Statement& statement, const ScopePtr& scope,
                                       const Value& iterable) {
  std::vector<Value> items = runtime_.Iterate(iterable);
  if (statement.condition == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    const auto inner = std::make_shared<Scope>(scope);
    Assign(statement.target, item, inner);
    if (IsTrue(Evaluate(*statement.condition, inner))) chosen.push_back(std::move(item));
  }
  return chosen;
}

void Renderer::RunFor(const Statement& statement, const ScopePtr& scope, const Value& iterable,
                      int64_t depth0, std::string* out) {
  const Depth depth(this);
  const auto loop = std::make_shared<Loop>();
  loop->items = LoopItems(statement, scope, iterable);
  loop->depth0 = depth0;
  if (statement.is_recursive) {
    captured_.push_back(scope);
    loop->recurse = [this, &statement, scope, depth0](const Value& inner_iterable) {
      std::string text;
      RunFor(statement, scope, inner_iterable, depth0 + 1, &text);
      return runtime_.MakeText(std::move(text));
    };
  }
  for (size_t i = 0; i < loop->items.size(); ++i) {
    runtime_.Step();
    loop->index0 = static_cast<int64_t>(i);
    const auto inner = std::make_shared<Scope>(scope);
    inner->Set(syntax_.loop, Value(loop));
    Assign(statement.target, loop->items[i], inner);
    if (Run(statement.body, inner, out) == Flow::kBreak) break;
  }
  if (loop.use_count() > 1) captured_loops_.push_back(loop);
  // In jinja2, unlike in Python, `else` is for loops without a single pass.
  if (loop->items.empty()) {
    Run(statement.else_body, std::make_shared<Scope>(scope), out);
  }
}

void Renderer::RunCall(const Statement& statement, const ScopePtr& scope, std::string* out) {
  const Value caller = MakeMacro(*statement.macro, scope);
  Write(ToString(runtime_, EvaluateCall(*statement.expression, scope, &caller)), out);
}

void Renderer::RunWith(const Statement& statement, const ScopePtr& scope, std::string* out) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, expression] : statement.assignments) {
    Assign(target, Evaluate(*expression, scope), inner);
  }
  Run(statement.body, inner, out);
}

void Renderer::RunGeneration(const Statement& statement, const ScopePtr& scope, std::string* out) {
  const std::string text = RenderBody(statement.body, scope);
  // The position of the block's text in the whole text is known only at the top level. transformers
  // also uses the position that has been reached there.
  const auto begin = static_cast<int64_t>(root_out_->size());
  rendering_.generations.push_back({begin, begin + static_cast<int64_t>(text.size())});
  Write(text, out);
}

std::string Renderer::RenderBody(const Body& body, const ScopePtr& scope) {
  std::string text;
  Run(body, std::make_shared<Scope>(scope), &text);
  return text;
}

void Renderer::Assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.parts.empty()) {
    const std::vector<Value> items = runtime_.Iterate(value);
    if (items.size() != target.parts.size()) {
      FailAt(target.position, "cannot unpack ", items.size(), " values into ", target.parts.size());
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope->Set(target.name, value);
    return;
  }
  const Value* found = scope->Find(target.name);
  Namespace* name_space = found == nullptr ? nullptr : found->name_space();
  if (name_space == nullptr) {
    FailAt(target.position, "cannot assign attribute on non-namespace object");
  }
  for (auto& [name, slot] : name_space->attributes) {
    if (name == target.attribute) {
      slot = value;
      return;
    }
  }
  runtime_.Charge(static_cast<int64_t>(sizeof(Value) + target.attribute.size()));
  name_space->attributes.emplace_back(target.attribute, value);
}

Value Renderer::MakeMacro(const MacroSyntax& macro, const ScopePtr& scope) {
  captured_.push_back(scope);
  const auto call = [this, &macro, scope](Runtime&, const Arguments& arguments) {
    const Depth depth(this);
    const auto inner = std::make_shared<Scope>(scope);
    BindParameters(macro, arguments, inner);
    std::string text;
    Run(macro.body, inner, &text);
    return runtime_.MakeText(std::move(text));
  };
  return runtime_.MakeCallable("Macro", macro.name, call);
}

void Renderer::BindParameters(const MacroSyntax& macro, Arguments arguments,
                              const ScopePtr& inner) {
  const size_t num_parameters = macro.parameters.size();
  auto take_keyword = [&](const std::string& name) -> std::optional<Value> {
    const auto found = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                    [&](const auto& keyword) { return keyword.first == name; });
    if (found == arguments.keywords.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments.keywords.erase(found);
    return value;
  };
  bool has_caller_parameter = false;
  for (size_t i = 0; i < num_parameters; ++i) {
    const NameId id = macro.parameters[i];
    const std::string& name = syntax_.names[id];
    has_caller_parameter |= id == syntax_.caller;
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take_keyword(name);
    }
    const size_t num_required = num_parameters - macro.defaults.size();
    if (!value && i >= num_required) value = Evaluate(*macro.defaults[i - num_required], inner);
    if (!value) value = Value::OfUndefined("parameter '" + name + "' was not provided");
    inner->Set(id, *value);
  }
  if (macro.uses_caller && !has_caller_parameter) {
    inner->Set(syntax_.caller,
               take_keyword("caller").value_or(Value::OfUndefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [name, value] : arguments.keywords) {
      items.emplace_back(runtime_.MakeText(name), std::move(value));
    }
    inner->Set(syntax_.kwargs, runtime_.MakeDict(std::move(items)));
  } else if (!arguments.keywords.empty()) {
    Fail("macro '", macro.name, "' takes no keyword argument '", arguments.keywords[0].first, "'");
  }
  const size_t num_bound = std::min(num_parameters, arguments.positional.size());
  if (macro.uses_varargs) {
    arguments.positional.erase(arguments.positional.begin(),
                               arguments.positional.begin() + static_cast<ptrdiff_t>(num_bound));
    inner->Set(syntax_.varargs, runtime_.MakeSequence(arguments.positional, SequenceType::kTuple));
  } else if (arguments.positional.size() > num_parameters) {
    Fail("macro '", macro.name, "' takes not more than ", num_parameters, " argument(s)");
  }
}

}  // namespace taopd::jinja
