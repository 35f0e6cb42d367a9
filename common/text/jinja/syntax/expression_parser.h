// The part of the parser that reads expressions. The parser of statements (parser.cc) derives from
// it. Not thread-safe.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/jinja/syntax/lexer.h"
#include "common/text/jinja/syntax/syntax.h"

namespace taopd::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Advance() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool IsOperator(std::string_view text) const { return Is(TokenType::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenType::kName, text); }
  bool Is(TokenType type, std::string_view text) const {
    return current().type == type && current().text == text;
  }
  // If this token is the current one, advances and returns true.
  bool Skip(TokenType type, std::string_view text);
  bool SkipOperator(std::string_view text) { return Skip(TokenType::kOperator, text); }
  bool SkipName(std::string_view text) { return Skip(TokenType::kName, text); }
  void Expect(TokenType type, std::string_view text);
  void ExpectOperator(std::string_view text) { Expect(TokenType::kOperator, text); }
  void ExpectName(std::string_view text) { Expect(TokenType::kName, text); }
  std::string ExpectName();
  [[noreturn]] void FailUnexpected(std::string_view expected) const;
  NameId IdOf(const std::string& name);

  ExpressionPtr ParseExpression(bool with_condition = true);
  // Parses one expression, or the tuple a, b, c. The name `ends_with_name`, if not empty, ends the
  // tuple.
  ExpressionPtr ParseTuple(bool with_condition, bool is_in_parentheses,
                           std::string_view ends_with_name = "");
  CallArguments ParseArguments();
  // Parses filters, one after another, that apply to `operand`. With is_inline, the first filter
  // needs no bar.
  ExpressionPtr ParseFilters(ExpressionPtr operand, bool is_inline);

  std::vector<std::string> names_;
  // The macros that are being parsed, innermost last.
  std::vector<MacroSyntax*> macros_;

  // Counts one level of nesting for its lifetime. Throws beyond kMaxSyntaxDepth.
  class Nested {
   public:
    explicit Nested(ExpressionParser* parser);
    ~Nested() { --parser_->depth_; }

   private:
    ExpressionParser* parser_;
  };

 private:
  ExpressionPtr Make(ExpressionKind kind, Position position, std::vector<ExpressionPtr> children);
  static std::vector<ExpressionPtr> List(ExpressionPtr a, ExpressionPtr b = nullptr);
  static void CheckDepth(int depth, Position position);
  void ParseArgumentsOf(Expression* node);
  // These functions parse operands with left-associative operators between them.
  using ParseFunction = ExpressionPtr (ExpressionParser::*)();
  using Operators = std::initializer_list<std::pair<std::string_view, Operator>>;
  ExpressionPtr ParseLogical(std::string_view name, ExpressionKind kind,
                             ParseFunction parse_operand);
  ExpressionPtr ParseBinary(Operators operators, ParseFunction parse_operand);
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcatenate();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseFiltered();
  ExpressionPtr ParseUnary();
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseName();
  // Parses the rest of a list or of a dictionary, whose closing operator is `end`.
  ExpressionPtr ParseItems(ExpressionKind kind, Position position, std::string_view end);
  ExpressionPtr ParsePostfix(ExpressionPtr operand);
  ExpressionPtr ParseFilterOrTest(ExpressionPtr operand);
  ExpressionPtr ParseDot(ExpressionPtr operand);
  ExpressionPtr ParseSubscript(ExpressionPtr operand);
  ExpressionPtr ParseCall(ExpressionPtr operand);
  ExpressionPtr ParseTest(ExpressionPtr operand);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  absl::flat_hash_map<std::string, NameId> ids_;
};

}  // namespace taopd::jinja
