#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/latex/grammar.h"

namespace taopd::grading::latex {

ExprPtr Parser::Expression() {
  DepthGuard guard(this);
  if (guard.Exceeded()) return nullptr;
  ExprPtr left = Product(true);
  while (left && (At(Token::kAdd) || At(Token::kSub))) {
    const bool minus = At(Token::kSub);
    ++position_;
    ExprPtr right = Product(true);
    if (!right) return nullptr;
    left = MakeAdd(left, minus ? Negate(right) : right);
  }
  return left;
}

ExprPtr Parser::Divide(const ExprPtr& top, const ExprPtr& bottom) {
  if (IsInteger(*bottom) && bottom->number == 0 && IsNumber(*top))
    return MakeNode(ExprKind::kCall, {}, "zoo");
  if (IsInteger(*top) && IsInteger(*bottom)) return MakeRational(top->number / bottom->number);
  return MakeMul(top, MakeNode(ExprKind::kPow, {bottom, MakeRational(-1)}));
}

ExprPtr Parser::Product(bool functions) {
  ExprPtr left = Unary(functions);
  while (left && Among(Peek(), {Token::kMul, Token::kDiv, Token::kColon, Token::kMod})) {
    const Token op = Peek();
    ++position_;
    ExprPtr right = Unary(functions);
    if (!right) return nullptr;
    if (op == Token::kMul) {
      left = MakeMul(left, right);
    } else if (op == Token::kMod) {
      left = MakeNode(ExprKind::kFunction, {left, right}, "mod");
    } else {
      left = Divide(left, right);
    }
  }
  return left;
}

ExprPtr Parser::Unary(bool functions) {
  DepthGuard guard(this);
  if (guard.Exceeded()) return nullptr;
  if (Take(Token::kAdd)) return Unary(functions);
  if (Take(Token::kSub)) {
    ExprPtr e = Unary(functions);
    return e ? Negate(e) : nullptr;
  }
  std::vector<ExprPtr> factors;
  bool first = true;
  while (first || StartsPostfix(functions)) {
    ExprPtr factor = Postfix();
    if (!factor) return nullptr;
    factors.push_back(std::move(factor));
    first = false;
  }
  ExprPtr product = factors.back();
  for (size_t i = factors.size() - 1; i-- > 0;) {
    // An integer before a positive fraction or integer is a mixed number: 2 1/2.
    if (IsInteger(*factors[i]) && product->kind == ExprKind::kRational && product->number > 0) {
      const Rational& whole = factors[i]->number;
      product = MakeRational(whole < 0 ? Rational(whole - product->number)
                                       : Rational(whole + product->number));
    } else {
      product = MakeMul(factors[i], product);
    }
  }
  return product;
}

bool Parser::StartsPostfix(bool functions) const {
  switch (Peek()) {
    case Token::kLeftParen:
    case Token::kLeftGroup:
    case Token::kLeftBrace:
    case Token::kLeftBracket:
    case Token::kLeftBraceVisual:
    case Token::kLeftBraceCommand:
    case Token::kLeftBrack:
    case Token::kBoxed:
    case Token::kLeftVert:
    case Token::kLeftFloor:
    case Token::kLeftCeil:
    case Token::kFrac:
    case Token::kBinom:
    case Token::kMatrixBegin:
    case Token::kDetBegin:
    case Token::kNumber:
    case Token::kPercentNumber:
    case Token::kScientific:
    case Token::kLetter:
    case Token::kCapitalE:
    case Token::kGreek:
    case Token::kOtherSymbol:
    case Token::kAccent:
    case Token::kDifferential:
    case Token::kInfinity:
    case Token::kGamma:
      return true;
    case Token::kBar:
      return !in_bars_;
    case Token::kVert:
      return !in_verts_;
    case Token::kFunction:
    case Token::kMultiFunction:
    case Token::kOperatorName:
    case Token::kBigOperator:
    case Token::kLimit:
    case Token::kSqrt:
    case Token::kEuler:
      return functions;
    default:
      return false;
  }
}

ExprPtr Parser::Postfix() {
  ExprPtr e = Power();
  while (e) {
    if (Take(Token::kBang)) {
      e = MakeNode(ExprKind::kFunction, {e}, "factorial");
    } else if (At(Token::kTranspose)) {
      ++position_;
      if (e->kind == ExprKind::kMatrix) e = Transposed(*e);
    } else if (!Take(Token::kDegree)) {
      break;
    }
  }
  return e;
}

ExprPtr Parser::Power() {
  ExprPtr base = Component();
  while (base && At(Token::kCaret)) {
    ++position_;
    ExprPtr exponent = Script();
    if (!exponent) return nullptr;
    base = MakeNode(ExprKind::kPow, {base, exponent});
    if (At(Token::kUnderscore) && !SkipSubscript()) return nullptr;
  }
  return base;
}

ExprPtr Parser::Script() {
  if (!At(Token::kLeftBrace)) return Atom();
  ++position_;
  ExprPtr e = Scoped([this] { return Expression(); });
  return e && Take(Token::kRightBrace) ? e : nullptr;
}

bool Parser::SkipSubscript() {
  std::string text;
  return SubscriptText(&text);
}

bool Parser::SubscriptText(std::string* text) {
  if (!Take(Token::kUnderscore)) return false;
  const size_t start = position_ + (At(Token::kLeftBrace) ? 1 : 0);
  size_t stop;
  if (Take(Token::kLeftBrace)) {
    do {
      if (!Scoped([this] { return Expression(); })) return false;
    } while (Take(Token::kComma));
    stop = position_;
    if (!Take(Token::kRightBrace)) return false;
  } else {
    if (!Atom()) return false;
    stop = position_;
  }
  for (size_t i = start; i < stop; ++i) text->append(tokens_[i].text);
  return true;
}

}  // namespace taopd::grading::latex
