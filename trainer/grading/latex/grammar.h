// The recursive-descent parser behind parser.h, implemented in these files:
//   parser.cc       whole answers, sets, tuples and relations
//   arithmetic.cc   sums, products and powers
//   brackets.cc     brackets, bars, fractions and matrices
//   atoms.cc        functions, symbols and numbers
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/latex/lexer.h"

namespace taopd::grading::latex {

// Reads one answer. Every method leaves the position after the text that it has read. A method that
// cannot read its construct returns nullptr (or false) and may leave the position anywhere: its
// caller gives up or goes back.
class Parser {
 public:
  // The tokens must outlive the parser.
  Parser(const std::vector<LexedToken>& tokens, bool real_symbols)
      : tokens_(tokens), real_symbols_(real_symbols) {}

  // Tries the three readings of a whole answer in the order of the grammar. `source` is the text
  // from which the tokens come.
  ExprPtr Answer(std::string_view source);

 private:
  static constexpr int64_t kMaxSteps = 300000;

  class DepthGuard {
   public:
    explicit DepthGuard(Parser* parser) : parser_(parser) { ++parser_->depth_; }
    ~DepthGuard() { --parser_->depth_; }
    bool Exceeded() const {
      return parser_->depth_ > kMaxExpressionDepth || ++parser_->steps_ > kMaxSteps;
    }

   private:
    Parser* parser_;
  };

  Token Peek(size_t ahead = 0) const {
    const size_t i = position_ + ahead;
    return i < tokens_.size() ? tokens_[i].token : Token::kEnd;
  }
  std::string_view Text() const { return tokens_[position_].text; }
  bool At(Token token) const { return Peek() == token; }
  bool Take(Token token) {
    if (Peek() != token || steps_ > kMaxSteps) return false;
    ++position_;
    return true;
  }
  static bool Among(Token token, std::initializer_list<Token> tokens) {
    return std::ranges::find(tokens, token) != tokens.end();
  }
  // Parses the inside of other brackets, where a bar opens an absolute value again.
  template <typename Parse>
  ExprPtr Scoped(const Parse& parse) {
    const bool bars = in_bars_, verts = in_verts_;
    in_bars_ = in_verts_ = false;
    ExprPtr e = parse();
    in_bars_ = bars;
    in_verts_ = verts;
    return e;
  }
  ExprPtr Braced() { return At(Token::kLeftBrace) ? Group(Token::kRightBrace) : nullptr; }

  ExprPtr ElementsRelation();
  // a, or (a, b, c), where all are symbols.
  ExprPtr AtomList();
  static ExprPtr ElementsToSet(const std::vector<std::vector<ExprPtr>>& groups);
  // Reads a whole answer such as 1,234 or -1,234,567.5 as a number, or returns nullopt. As in
  // math-verify, 0,123 is 0.123, and the result is null for what its Python cannot read: a second
  // separator after a leading zero (0,123,456), and zeros after a minus (-0,123).
  static std::optional<ExprPtr> CommaNumber(std::string_view source);
  bool SemicolonElements(bool relations, std::vector<std::vector<ExprPtr>>* groups);
  bool EndsElement() const;
  bool Element(bool relations, std::vector<ExprPtr>* out);
  ExprPtr RelationChain(ExprPtr left);
  ExprPtr SetRelation();
  // \setminus binds loosest, \cap tightest.
  ExprPtr SetOperation(int level);
  ExprPtr SetGroup();
  ExprPtr SetAtom();
  ExprPtr IntervalAtom();
  ExprPtr Expression();
  static ExprPtr Divide(const ExprPtr& top, const ExprPtr& bottom);
  ExprPtr Product(bool functions);
  ExprPtr Unary(bool functions);
  bool StartsPostfix(bool functions) const;
  ExprPtr Postfix();
  ExprPtr Power();
  // Parses an exponent: one atom, or an expression in braces.
  ExprPtr Script();
  bool SkipSubscript();
  // Appends the source of _a or _{...} without spaces.
  bool SubscriptText(std::string* text);
  ExprPtr Group(Token close);
  ExprPtr Wrapped(Token close, const char* function);
  ExprPtr Bars(Token bar, bool* inside);
  ExprPtr Component();
  ExprPtr BraceOrChoose();
  ExprPtr TwoBraced();
  ExprPtr MatrixOrDeterminant();
  ExprPtr Root();
  ExprPtr Euler();
  ExprPtr Function();
  ExprPtr Arguments(const std::string& name);
  ExprPtr MultiFunction();
  // Sums, integrals and limits are compared by their text, not by their value.
  ExprPtr BigOperator();
  // Parses f(x), f(x,y), f^2(x) or f[x]: a name, then one atom or a list in brackets. Does not move
  // the position if it returns nullptr.
  ExprPtr Call();
  ExprPtr BackTo(size_t start);
  ExprPtr Atom();
  // A symbol with its subscript (part of the name) and superscript (a power), in either order.
  ExprPtr AtomExpr();

  const std::vector<LexedToken>& tokens_;
  const bool real_symbols_;
  size_t position_ = 0;
  int depth_ = 0;
  int64_t steps_ = 0;
  bool in_bars_ = false, in_verts_ = false;
};

}  // namespace taopd::grading::latex
