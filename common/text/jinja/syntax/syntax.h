// The syntax tree of a parsed template. Immutable, so any number of threads may render it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/syntax/lexer.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using StatementPtr = std::unique_ptr<Statement>;

// While a template runs, a name is its index in Syntax::names.
using NameId = int32_t;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr rest;           // *rest, or null
  ExpressionPtr rest_keywords;  // **rest_keywords, or null
};

enum class ExpressionKind : uint8_t {
  kConstant,     // constant
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value, ...
  kAttribute,    // children[0] . text
  kItem,         // children[0] [ children[1] ]
  kSlice,        // children[0] [ children[1] : children[2] : children[3] ], absent ones null
  kCall,         // children[0] ( arguments )
  kFilter,       // children[0] | text ( arguments ); in a filter block children[0] is null
  kTest,         // children[0] is text ( arguments )
  kNot,          // not children[0]
  kNegative,     // - children[0]
  kPositive,     // + children[0]
  kAnd,          // children[0] and children[1]
  kOr,           // children[0] or children[1]
  kBinary,       // children[0] operators[0] children[1]
  kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
  kConcatenate,  // children[0] ~ children[1] ~ ...
  kConditional,  // children[0] if children[1] else children[2], which may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  Position position;
  int depth = 1;  // 1 + the depth of the deepest child
  Value constant;
  NameId name = -1;
  std::string text;
  Builtin builtin = nullptr;  // builtin of a filter or test; null if none has this name
  std::vector<ExpressionPtr> children;
  std::vector<Operator> operators;
  CallArguments arguments;
};

// The left side of an assignment: a name, an attribute of a namespace, or several targets.
struct Target {
  Position position;
  NameId name = -1;
  std::string attribute;  // attribute of the namespace `name`; empty for a name
  std::vector<Target> parts;
};

// A macro, or the body of a call block, which is treated as one.
struct MacroSyntax {
  std::string name;
  std::vector<NameId> parameters;
  std::vector<ExpressionPtr> defaults;  // for the last parameters
  std::vector<StatementPtr> body;
  // Whether the body uses these names.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StatementKind : uint8_t {
  kText,        // text
  kPrint,       // expression
  kIf,          // expression, body, else_body
  kFor,         // target in expression if condition: body, else_body; is_recursive
  kSet,         // target = expression
  kSetBlock,    // target = body, through the filters of expression (or null)
  kMacro,       // macro
  kCall,        // expression (a call) with macro as its caller
  kFilter,      // body, through the filters of expression
  kWith,        // targets = values: body
  kGeneration,  // body, marked as the assistant's
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  Position position;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  bool is_recursive = false;
  Target target;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::vector<StatementPtr> body;
  std::vector<StatementPtr> else_body;
  std::unique_ptr<MacroSyntax> macro;
};

struct Syntax {
  std::vector<StatementPtr> body;
  std::vector<std::string> names;  // name of each NameId
  // The ids of the names that the renderer binds.
  NameId loop = -1, caller = -1, varargs = -1, kwargs = -1;
};

// Parses a template. The grammar is jinja2's, without inheritance, imports and translations, which
// chat templates do not need and which are refused by name. Throws TemplateError. REQUIRES: source
// is valid UTF-8.
Syntax ParseTemplate(std::string_view source, const LexerOptions& options);

}  // namespace taopd::jinja
