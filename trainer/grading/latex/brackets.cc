#include "trainer/grading/latex/grammar.h"

namespace taopd::grading::latex {

ExprPtr Parser::Group(Token close) {
  ++position_;
  ExprPtr e = Scoped([this] { return Expression(); });
  return e && Take(close) ? e : nullptr;
}

ExprPtr Parser::Wrapped(Token close, const char* function) {
  ExprPtr e = Group(close);
  return e ? MakeNode(ExprKind::kFunction, {e}, function) : nullptr;
}

ExprPtr Parser::Bars(Token bar, bool* inside) {
  ++position_;
  ExprPtr e = Scoped([&] {
    *inside = true;
    return Expression();
  });
  return e && Take(bar) ? MakeNode(ExprKind::kFunction, {e}, "abs") : nullptr;
}

ExprPtr Parser::Component() {
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

ExprPtr Parser::BraceOrChoose() {
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

ExprPtr Parser::TwoBraced() {
  const bool fraction = At(Token::kFrac);
  ++position_;
  ExprPtr top = Braced();
  ExprPtr bottom = top ? Braced() : nullptr;
  if (!bottom) return nullptr;
  return fraction ? Divide(top, bottom) : MakeNode(ExprKind::kFunction, {top, bottom}, "binomial");
}

ExprPtr Parser::MatrixOrDeterminant() {
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

}  // namespace taopd::grading::latex
