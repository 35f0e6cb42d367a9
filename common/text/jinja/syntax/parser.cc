// The parser of statements.
#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include "common/text/jinja/syntax/expression_parser.h"

namespace taopd::jinja {
namespace {

constexpr std::array<std::string_view, 9> kRefusedTags = {
    "block", "extends", "import", "from", "include", "trans", "autoescape", "do", "print"};

class Parser final : public ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Syntax Run() {
    Syntax syntax;
    syntax.body = ParseBody({});
    syntax.loop = IdOf("loop");
    syntax.caller = IdOf("caller");
    syntax.varargs = IdOf("varargs");
    syntax.kwargs = IdOf("kwargs");
    syntax.names = std::move(names_);
    return syntax;
  }

 private:
  using Ends = std::vector<std::string_view>;

  // Parses statements up to a tag with one of these names, which becomes the current one (after its
  // "{%"). Without names, parses up to the end of the template.
  std::vector<StatementPtr> ParseBody(const Ends& ends) {
    const Nested nested(this);
    std::vector<StatementPtr> body;
    for (;;) {
      const Token& token = current();
      if (token.type == TokenType::kEnd) {
        if (!ends.empty()) FailAt(token.position, "end of template, but expected ", Quote(ends));
        return body;
      }
      if (token.type == TokenType::kData) {
        body.push_back(Make(StatementKind::kText));
        body.back()->text = token.text;
      } else if (token.type == TokenType::kVariableBegin) {
        body.push_back(Make(StatementKind::kPrint));
        body.back()->expression = ParseTuple(/*with_condition=*/true, /*is_in_parentheses=*/false);
        if (current().type != TokenType::kVariableEnd) FailUnexpected("end of print statement");
        Advance();
      } else {
        Advance();
        if (current().type != TokenType::kName) FailUnexpected("a tag name");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        body.push_back(ParseTag(ends));
        ExpectBlockEnd();
      }
    }
  }

  // Parses a body whose end tag has one name.
  std::vector<StatementPtr> ParseBodyTo(std::string_view end) {
    ExpectBlockEnd();
    std::vector<StatementPtr> body = ParseBody({end});
    Advance();
    return body;
  }

  StatementPtr ParseTag(const Ends& ends) {
    const std::string tag = current().text;
    using Read = StatementPtr (Parser::*)();
    static constexpr std::pair<std::string_view, Read> kTags[] = {
        {"if", &Parser::ParseIf},          {"for", &Parser::ParseFor},
        {"set", &Parser::ParseSet},        {"macro", &Parser::ParseMacro},
        {"call", &Parser::ParseCallBlock}, {"filter", &Parser::ParseFilterBlock},
        {"with", &Parser::ParseWith},      {"generation", &Parser::ParseGeneration},
        {"break", &Parser::ParseJump},     {"continue", &Parser::ParseJump},
    };
    if (const Read read = FindIn(kTags, tag)) return (this->*read)();
    const Position position = current().position;
    if (std::find(kRefusedTags.begin(), kRefusedTags.end(), tag) != kRefusedTags.end()) {
      FailAt(position, "tag '", tag, "' is not supported in chat templates");
    }
    if (ends.empty()) FailAt(position, "unknown tag '", tag, "'");
    FailAt(position, "unknown tag '", tag, "', expected ", Quote(ends));
  }

  static std::string Quote(const Ends& ends) {
    std::string text;
    for (const std::string_view end : ends)
      text += Concat(text.empty() ? "" : " or ", "'", end, "'");
    return text;
  }

  void ExpectBlockEnd() {
    if (current().type != TokenType::kBlockEnd) FailUnexpected("end of statement block");
    Advance();
  }

  // Makes a statement that begins with the current token, and advances.
  StatementPtr Make(StatementKind kind) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->position = current().position;
    Advance();
    return statement;
  }

  StatementPtr ParseIf() {
    // An elif is an if in the else of the preceding branch, so the branches nest.
    std::list<Nested> branches;
    branches.emplace_back(this);
    StatementPtr first = Make(StatementKind::kIf);
    Statement* branch = first.get();
    for (;;) {
      branch->expression = ParseTuple(/*with_condition=*/false, /*is_in_parentheses=*/false);
      ExpectBlockEnd();
      branch->body = ParseBody({"elif", "else", "endif"});
      if (!IsName("elif")) break;
      branches.emplace_back(this);
      branch->else_body.push_back(Make(StatementKind::kIf));
      branch = branch->else_body.back().get();
    }
    if (SkipName("else")) {
      ExpectBlockEnd();
      branch->else_body = ParseBody({"endif"});
    }
    Advance();
    return first;
  }

  StatementPtr ParseFor() {
    StatementPtr loop = Make(StatementKind::kFor);
    loop->target = ParseTarget(/*allows_attribute=*/false);
    ExpectName("in");
    loop->expression =
        ParseTuple(/*with_condition=*/false, /*is_in_parentheses=*/false, "recursive");
    if (SkipName("if")) loop->condition = ParseExpression();
    loop->is_recursive = SkipName("recursive");
    ExpectBlockEnd();
    ++num_loops_;
    loop->body = ParseBody({"endfor", "else"});
    --num_loops_;
    if (SkipName("else")) {
      ExpectBlockEnd();
      loop->else_body = ParseBody({"endfor"});
    }
    Advance();
    return loop;
  }

  StatementPtr ParseSet() {
    StatementPtr set = Make(StatementKind::kSet);
    set->target = ParseTarget(/*allows_attribute=*/true);
    if (SkipOperator("=")) {
      set->expression = ParseTuple(/*with_condition=*/true, /*is_in_parentheses=*/false);
      return set;
    }
    set->kind = StatementKind::kSetBlock;
    set->expression = ParseFilters(nullptr, /*is_inline=*/false);
    const OutsideLoops outside(this);
    set->body = ParseBodyTo("endset");
    return set;
  }

  StatementPtr ParseMacro() {
    StatementPtr statement = Make(StatementKind::kMacro);
    statement->target.name = IdOf(current().text);
    statement->macro = std::make_unique<MacroSyntax>();
    statement->macro->name = ExpectName();
    ParseSignature(statement->macro.get());
    ParseMacroBody("endmacro", statement->macro.get());
    return statement;
  }

  StatementPtr ParseCallBlock() {
    StatementPtr statement = Make(StatementKind::kCall);
    statement->macro = std::make_unique<MacroSyntax>();
    statement->macro->name = "caller";
    if (IsOperator("(")) ParseSignature(statement->macro.get());
    statement->expression = ParseExpression();
    if (statement->expression->kind != ExpressionKind::kCall) {
      FailAt(statement->position, "expected a call");
    }
    ParseMacroBody("endcall", statement->macro.get());
    return statement;
  }

  void ParseSignature(MacroSyntax* macro) {
    ExpectOperator("(");
    while (!IsOperator(")")) {
      if (!macro->parameters.empty()) ExpectOperator(",");
      const Position position = current().position;
      const NameId name = IdOf(ExpectName());
      if (std::find(macro->parameters.begin(), macro->parameters.end(), name) !=
          macro->parameters.end()) {
        FailAt(position, "parameter '", names_[name], "' occurs twice");
      }
      macro->parameters.push_back(name);
      if (SkipOperator("=")) {
        macro->defaults.push_back(ParseExpression());
      } else if (!macro->defaults.empty()) {
        FailAt(position, "non-default argument follows default argument");
      }
    }
    ExpectOperator(")");
  }

  void ParseMacroBody(std::string_view end, MacroSyntax* macro) {
    const OutsideLoops outside(this);
    macros_.push_back(macro);
    macro->body = ParseBodyTo(end);
    macros_.pop_back();
  }

  StatementPtr ParseFilterBlock() {
    StatementPtr statement = Make(StatementKind::kFilter);
    statement->expression = ParseFilters(nullptr, /*is_inline=*/true);
    const OutsideLoops outside(this);
    statement->body = ParseBodyTo("endfilter");
    return statement;
  }

  StatementPtr ParseWith() {
    StatementPtr statement = Make(StatementKind::kWith);
    while (current().type != TokenType::kBlockEnd) {
      if (!statement->assignments.empty()) ExpectOperator(",");
      Target target = ParseTargetPart(/*allows_attribute=*/false);
      ExpectOperator("=");
      statement->assignments.emplace_back(std::move(target), ParseExpression());
    }
    statement->body = ParseBodyTo("endwith");
    return statement;
  }

  StatementPtr ParseGeneration() {
    StatementPtr statement = Make(StatementKind::kGeneration);
    const OutsideLoops outside(this);
    statement->body = ParseBodyTo("endgeneration");
    return statement;
  }

  StatementPtr ParseJump() {
    const Token& tag = current();
    if (num_loops_ == 0) FailAt(tag.position, "'", tag.text, "' outside of a loop");
    return Make(tag.text == "break" ? StatementKind::kBreak : StatementKind::kContinue);
  }

  Target ParseTargetPart(bool allows_attribute) {
    const Nested nested(this);
    if (SkipOperator("(")) {
      Target target = ParseTarget(allows_attribute);
      ExpectOperator(")");
      return target;
    }
    Target target;
    target.position = current().position;
    const std::string name = ExpectName();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) FailAt(target.position, "can't assign to '", name, "'");
    }
    target.name = IdOf(name);
    if (allows_attribute && SkipOperator(".")) target.attribute = ExpectName();
    return target;
  }

  // Parses one target, or several separated by commas.
  Target ParseTarget(bool allows_attribute) {
    Target first = ParseTargetPart(allows_attribute);
    if (!IsOperator(",")) return first;
    Target tuple;
    tuple.position = first.position;
    tuple.parts.push_back(std::move(first));
    while (SkipOperator(",") &&
           (IsOperator("(") || (current().type == TokenType::kName && !IsName("in")))) {
      tuple.parts.push_back(ParseTargetPart(allows_attribute));
    }
    return tuple;
  }

  // A break inside cannot end an enclosing loop.
  class OutsideLoops {
   public:
    explicit OutsideLoops(Parser* parser)
        : parser_(parser), num_loops_(std::exchange(parser->num_loops_, 0)) {}
    ~OutsideLoops() { parser_->num_loops_ = num_loops_; }

   private:
    Parser* parser_;
    int num_loops_;
  };

  int num_loops_ = 0;
};

}  // namespace

Syntax ParseTemplate(std::string_view source, const LexerOptions& options) {
  return Parser(Tokenize(source, options)).Run();
}

}  // namespace taopd::jinja
