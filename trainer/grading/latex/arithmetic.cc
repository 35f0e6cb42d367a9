#include "trainer/grading/latex/grammar.h"

namespace taopd {

ExprPtr LatexParser::Expression() {
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

ExprPtr LatexParser::Divide(const ExprPtr& top, const ExprPtr& bottom) {
  if (IsInteger(*bottom) && bottom->number == 0 && IsNumber(*top))
    return MakeNode(ExprKind::kCall, {}, "zoo");
  if (IsInteger(*top) && IsInteger(*bottom)) return MakeRational(top->number / bottom->number);
  return MakeMul(top, MakeNode(ExprKind::kPow, {bottom, MakeRational(-1)}));
}

ExprPtr LatexParser::Product(bool functions) {
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

ExprPtr LatexParser::Unary(bool functions) {
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
    // 2 1/2: an integer before a positive fraction or integer is a mixed number.
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

bool LatexParser::StartsPostfix(bool functions) const {
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

ExprPtr LatexParser::Postfix() {
  ExprPtr e = Power();
  while (e) {
    if (Take(Token::kBang)) {
      e = MakeNode(ExprKind::kFunction, {e}, "factorial");
    } else if (At(Token::kTranspose)) {
      ++position_;
      if (e->kind == ExprKind::kMatrix) e = Transpose(*e);
    } else if (!Take(Token::kDegree)) {
      break;
    }
  }
  return e;
}

ExprPtr LatexParser::Transpose(const Expr& m) {
  const int columns = static_cast<int>(m.args.size()) / m.rows;
  auto t = std::make_shared<Expr>();
  t->kind = ExprKind::kMatrix;
  t->rows = columns;
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < m.rows; ++r)
      t->args.push_back(m.args[static_cast<size_t>(r * columns + c)]);
  }
  return t;
}

ExprPtr LatexParser::Power() {
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

ExprPtr LatexParser::Script() {
  if (!At(Token::kLeftBrace)) return Atom();
  ++position_;
  ExprPtr e = Scoped([this] { return Expression(); });
  return e && Take(Token::kRightBrace) ? e : nullptr;
}

bool LatexParser::SkipSubscript() {
  std::string text;
  return SubscriptText(&text);
}

bool LatexParser::SubscriptText(std::string* text) {
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

ExprPtr LatexParser::Group(Token close) {
  ++position_;
  ExprPtr e = Scoped([this] { return Expression(); });
  return e && Take(close) ? e : nullptr;
}

ExprPtr LatexParser::Wrapped(Token close, const char* function) {
  ExprPtr e = Group(close);
  return e ? MakeNode(ExprKind::kFunction, {e}, function) : nullptr;
}

ExprPtr LatexParser::Bars(Token bar, bool* inside) {
  ++position_;
  const bool bars = in_bars_, verts = in_verts_;
  in_bars_ = in_verts_ = false;
  *inside = true;
  ExprPtr e = Expression();
  in_bars_ = bars;
  in_verts_ = verts;
  return e && Take(bar) ? MakeNode(ExprKind::kFunction, {e}, "abs") : nullptr;
}

ExprPtr LatexParser::Component() {
  switch (Peek()) {
    case Token::kLeftParen:
      return Group(Token::kRightParen);
    case Token::kLeftGroup:
      return Group(Token::kRightGroup);
    case Token::kLeftBracket:
      return Group(Token::kRightBracket);
    case Token::kLeftBraceVisual:
      return Group(Token::kRightBraceVisual);
    case Token::kLeftBraceCommand:
      return Group(Token::kRightBraceCommand);
    case Token::kLeftBrack:
      return Group(Token::kRightBrack);
    case Token::kLeftBrace:
      return BraceOrChoose();
    case Token::kBoxed:
      ++position_;
      return Braced();
    case Token::kBar:
      return Bars(Token::kBar, &in_bars_);
    case Token::kVert:
      return Bars(Token::kVert, &in_verts_);
    case Token::kLeftVert:
      return Wrapped(Token::kRightVert, "abs");
    case Token::kLeftFloor:
      return Wrapped(Token::kRightFloor, "floor");
    case Token::kLeftCeil:
      return Wrapped(Token::kRightCeil, "ceiling");
    case Token::kFrac:
    case Token::kBinom:
      return TwoBraced();
    case Token::kMatrixBegin:
    case Token::kDetBegin:
      return MatrixOrDeterminant();
    case Token::kSqrt:
      return Root();
    case Token::kEuler:
      return Euler();
    case Token::kFunction:
    case Token::kOperatorName:
      return Function();
    case Token::kMultiFunction:
      return MultiFunction();
    case Token::kBigOperator:
    case Token::kLimit:
      return BigOperator();
    case Token::kGamma:
      if (Peek(1) == Token::kLeftParen) {
        ++position_;
        return Wrapped(Token::kRightParen, "gamma");
      }
      return Atom();
    case Token::kLetter:
    case Token::kGreek:
    case Token::kOtherSymbol:
    case Token::kAccent:
      if (ExprPtr call = Call()) return call;
      return Atom();
    default:
      return Atom();
  }
}

ExprPtr LatexParser::BraceOrChoose() {
  ++position_;
  ExprPtr top = Scoped([this] { return Expression(); });
  if (!top) return nullptr;
  if (Take(Token::kChoose)) {
    ExprPtr bottom = Scoped([this] { return Expression(); });
    if (!bottom || !Take(Token::kRightBrace)) return nullptr;
    return MakeNode(ExprKind::kFunction, {top, bottom}, "binomial");
  }
  return Take(Token::kRightBrace) ? top : nullptr;
}

ExprPtr LatexParser::TwoBraced() {
  const bool fraction = At(Token::kFrac);
  ++position_;
  ExprPtr top = Braced();
  ExprPtr bottom = top ? Braced() : nullptr;
  if (!bottom) return nullptr;
  return fraction ? Divide(top, bottom) : MakeNode(ExprKind::kFunction, {top, bottom}, "binomial");
}

ExprPtr LatexParser::MatrixOrDeterminant() {
  const Token close = At(Token::kMatrixBegin) ? Token::kMatrixEnd : Token::kDetEnd;
  ++position_;
  auto matrix = std::make_shared<Expr>();
  matrix->kind = ExprKind::kMatrix;
  size_t columns = 0;
  do {
    if (matrix->rows > 0 && At(close)) break;
    const size_t before = matrix->args.size();
    do {
      ExprPtr e = Scoped([this] { return Expression(); });
      if (!e) return nullptr;
      matrix->args.push_back(std::move(e));
    } while (Take(Token::kAmpersand));
    const size_t width = matrix->args.size() - before;
    if (matrix->rows > 0 && width != columns) return nullptr;
    columns = width;
    ++matrix->rows;
  } while (Take(Token::kRowEnd));
  if (!Take(close)) return nullptr;
  if (close == Token::kMatrixEnd) return matrix;
  return MakeNode(ExprKind::kFunction, {matrix}, "det");
}

}  // namespace taopd
