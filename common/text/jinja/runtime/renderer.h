// Runs a parsed template once. Not thread-safe. Only Template::Render uses this header.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/syntax/syntax.h"
#include "common/text/jinja/template.h"

namespace taopd::jinja {

// The variables of a running template. The template has one scope, and so have each pass of a loop,
// each macro call and each block that is rendered into a value. A look-up goes from the inner scope
// outwards. Not thread-safe.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer_scope) : outer(std::move(outer_scope)) {}

  void Set(NameId name, Value value) {
    for (auto& [known, slot] : values) {
      if (known == name) {
        slot = std::move(value);
        return;
      }
    }
    values.emplace_back(name, std::move(value));
  }
  // Returns the innermost value of the name, or null if no scope has it.
  const Value* Find(NameId name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
      for (const auto& [known, value] : scope->values) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }

  std::shared_ptr<Scope> outer;
  std::vector<std::pair<NameId, Value>> values;
};

class Renderer {
 public:
  Renderer(const Syntax& syntax, const RenderOptions& options)
      : syntax_(syntax), runtime_(options.now, options.time_zone) {}
  // Empties all scopes and namespaces, because they can refer to each other in cycles.
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  // Throws TemplateError; position() is then its place in the template.
  Rendering Render(const nlohmann::ordered_json& context);
  Position position() const { return position_; }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;
  using Body = std::vector<StatementPtr>;

  // Statements (renderer.cc).
  Flow Run(const Body& body, const ScopePtr& scope, std::string* out);
  Flow RunStatement(const Statement& statement, const ScopePtr& scope, std::string* out);
  void RunFor(const Statement& statement, const ScopePtr& scope, const Value& iterable,
              int64_t depth0, std::string* out);
  std::vector<Value> LoopItems(const Statement& statement, const ScopePtr& scope,
                               const Value& iterable);
  void RunCall(const Statement& statement, const ScopePtr& scope, std::string* out);
  void RunWith(const Statement& statement, const ScopePtr& scope, std::string* out);
  void RunGeneration(const Statement& statement, const ScopePtr& scope, std::string* out);
  // Renders a body into a text, in its own scope.
  std::string RenderBody(const Body& body, const ScopePtr& scope);
  void Assign(const Target& target, const Value& value, const ScopePtr& scope);
  Value MakeMacro(const MacroSyntax& macro, const ScopePtr& scope);
  void BindParameters(const MacroSyntax& macro, Arguments arguments, const ScopePtr& inner);
  void Write(std::string_view text, std::string* out);

  // Expressions (evaluate.cc).
  Value Evaluate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateHere(const Expression& expression, const ScopePtr& scope);
  Value EvaluateName(const Expression& expression, const ScopePtr& scope);
  Value EvaluateDict(const Expression& expression, const ScopePtr& scope);
  Value EvaluateSlice(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCall(const Expression& expression, const ScopePtr& scope, const Value* caller);
  Value EvaluateBinary(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCompare(const Expression& expression, const ScopePtr& scope);
  Value EvaluateSign(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConditional(const Expression& expression, const ScopePtr& scope);
  Value ApplyBuiltin(const Expression& expression, const ScopePtr& scope, const Value& input);
  // Applies filters to `input`, one after another.
  Value ApplyFilters(const Expression& expression, const ScopePtr& scope, const Value& input);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions,
                                 const ScopePtr& scope);
  Arguments EvaluateArguments(const CallArguments& arguments, const ScopePtr& scope);

  // Counts nested evaluations. Throws beyond kMaxEvaluationDepth.
  class Depth {
   public:
    explicit Depth(Renderer* renderer);
    ~Depth() { --renderer_->depth_; }

   private:
    Renderer* renderer_;
  };

  const Syntax& syntax_;
  Runtime runtime_;
  Position position_;
  int depth_ = 0;
  // The output of the template itself, as opposed to that of a macro or a block. Null before
  // Render.
  std::string* root_out_ = nullptr;
  Rendering rendering_;
  // The scopes to which a macro or a loop refers, and the loops to which a value refers.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Loop>> captured_loops_;
};

}  // namespace taopd::jinja
