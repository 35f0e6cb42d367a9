#include "trainer/grading/latex/grammar.h"

#include <cctype>

#include "trainer/grading/latex/symbol_names.h"

namespace taopd::grading::latex {

ExprPtr Parser::Root() {
  ++position_;
  ExprPtr exponent = MakeRational(Rational(1, 2));
  if (At(Token::kLeftBracket)) {
    ExprPtr degree = Group(Token::kRightBracket);
    if (!degree) return nullptr;
    exponent = Divide(MakeRational(1), degree);
  }
  ExprPtr base = Braced();
  return base ? MakeNode(ExprKind::kPow, {base, exponent}) : nullptr;
}

ExprPtr Parser::Euler() {
  ++position_;
  if (!Take(Token::kCaret)) return MakeConstant(ExprKind::kE);
  ExprPtr exponent = Script();
  return exponent ? MakeNode(ExprKind::kPow, {MakeConstant(ExprKind::kE), exponent}) : nullptr;
}

ExprPtr Parser::Function() {
  std::string name(Text().substr(1));
  const bool operator_name = At(Token::kOperatorName);
  ++position_;
  if (operator_name) {
    if (!Take(Token::kLeftBrace) || !At(Token::kName)) return nullptr;
    name = std::string(Text());
    ++position_;
    if (!Take(Token::kRightBrace)) return nullptr;
    if (name == "gcd" || name == "lcm") return Arguments(name);
  }
  if (name.rfind("arc", 0) == 0) {
    name = "a" + name.substr(3);
  } else if (name.rfind("ar", 0) == 0 && name != "arg") {
    name = "a" + name.substr(2);
  }
  if (name == "ceil") name = "ceiling";
  ExprPtr base, power;
  for (int i = 0; i < 2; ++i) {
    if (At(Token::kUnderscore) && !base) {
      ++position_;
      if (!(base = Script())) return nullptr;
    } else if (At(Token::kCaret) && !power) {
      ++position_;
      if (!(power = Script())) return nullptr;
    }
  }
  ExprPtr argument;
  const size_t start = position_;
  if (At(Token::kLeftParen)) argument = Group(Token::kRightParen);
  if (!argument) {
    position_ = start;
    argument = Product(false);
  }
  if (!argument) return nullptr;
  if (name == "ln" && !base) base = MakeConstant(ExprKind::kE);
  if (name == "log" && !base) base = MakeRational(10);
  if (name == "log" || name == "ln") {
    argument = MakeNode(ExprKind::kFunction, {argument, base}, "log");
  } else if (name == "exp") {
    argument = MakeNode(ExprKind::kPow, {MakeConstant(ExprKind::kE), argument});
  } else {
    static constexpr std::string_view kInvertible[] = {"sin", "cos",  "tan",  "csc", "sec",
                                                       "cot", "sinh", "cosh", "tanh"};
    if (power && power->kind == ExprKind::kRational && power->number == -1 &&
        std::find(std::begin(kInvertible), std::end(kInvertible), name) != std::end(kInvertible)) {
      name = "a" + name;
      power = nullptr;
    }
    argument = MakeNode(ExprKind::kFunction, {argument}, name);
  }
  return power ? MakeNode(ExprKind::kPow, {argument, power}) : argument;
}

ExprPtr Parser::Arguments(const std::string& name) {
  if (!Take(Token::kLeftParen)) return nullptr;
  std::vector<ExprPtr> args;
  do {
    ExprPtr e = Scoped([this] { return Expression(); });
    if (!e) return nullptr;
    args.push_back(std::move(e));
  } while (Take(Token::kComma));
  return Take(Token::kRightParen) ? MakeNode(ExprKind::kFunction, std::move(args), name) : nullptr;
}

ExprPtr Parser::MultiFunction() {
  const std::string name(Text().substr(1));
  ++position_;
  return Arguments(name);
}

ExprPtr Parser::BigOperator() {
  const std::string name(Text().substr(1));
  ++position_;
  std::vector<ExprPtr> args;
  for (int i = 0; i < 2; ++i) {
    if (At(Token::kUnderscore) && Peek(1) == Token::kLeftBrace) {
      position_ += 2;
      ExprPtr e = Scoped([this] { return Expression(); });
      if (e && Among(Peek(), {Token::kEquals, Token::kEquivalent, Token::kTo})) {
        ++position_;
        ExprPtr end = Scoped([this] { return Expression(); });
        e = end ? MakeNode(ExprKind::kTuple, {e, end}) : nullptr;
      }
      if (!e || !Take(Token::kRightBrace)) return nullptr;
      args.push_back(std::move(e));
    } else if (At(Token::kUnderscore) || At(Token::kCaret)) {
      ++position_;
      ExprPtr e = Script();
      if (!e) return nullptr;
      args.push_back(std::move(e));
    }
  }
  ExprPtr body = Product(true);
  if (!body) return nullptr;
  args.push_back(std::move(body));
  return MakeNode(ExprKind::kCall, std::move(args), name);
}

ExprPtr Parser::Call() {
  const size_t start = position_;
  std::string name(Text());
  ++position_;
  ExprPtr power;
  if (At(Token::kUnderscore) && !SubscriptText(&name)) return Back(start);
  if (Take(Token::kCaret) && !(power = Script())) return Back(start);
  const bool braced =
      At(Token::kLeftBrace) && (Peek(1) == Token::kLeftParen || Peek(1) == Token::kLeftBracket);
  if (braced) ++position_;
  Token close;
  if (At(Token::kLeftParen)) {
    close = Token::kRightParen;
  } else if (At(Token::kLeftBracket)) {
    close = Token::kRightBracket;
  } else {
    return Back(start);
  }
  ++position_;
  std::vector<ExprPtr> args;
  const size_t open = position_;
  ExprPtr atom = Atom();
  if (atom && At(close)) {
    args.push_back(atom);
  } else {
    position_ = open;
    do {
      ExprPtr e = At(close) && !args.empty() ? nullptr : Scoped([this] { return Expression(); });
      if (!e) break;
      args.push_back(std::move(e));
    } while (Take(Token::kComma));
    if (args.size() < 2) return Back(start);
  }
  if (!Take(close) || (braced && !Take(Token::kRightBrace))) return Back(start);
  ExprPtr call = MakeNode(ExprKind::kCall, std::move(args), name);
  return power ? MakeNode(ExprKind::kPow, {call, power}) : call;
}

ExprPtr Parser::Back(size_t start) {
  position_ = start;
  return nullptr;
}

ExprPtr Parser::Atom() {
  DepthGuard guard(this);
  if (guard.Exceeded()) return nullptr;
  const std::string text(Text());
  switch (Peek()) {
    case Token::kNumber: {
      ++position_;
      // The base of a numeral changes nothing.
      if (At(Token::kUnderscore) && !SkipSubscript()) return nullptr;
      return MakeDecimal(text);
    }
    case Token::kScientific:
      ++position_;
      return MakeDecimal(text);
    case Token::kPercentNumber: {
      ++position_;
      ExprPtr number = MakeDecimal(text.substr(0, text.find_first_not_of("0123456789.")));
      return number ? MakeNode(ExprKind::kPercent, {number}) : nullptr;
    }
    case Token::kCapitalE:
      ++position_;
      return SymbolOrConstant("e", real_symbols_);
    case Token::kGamma:
      ++position_;
      return MakeConstant(ExprKind::kEulerGamma);
    case Token::kInfinity:
      ++position_;
      return MakeConstant(ExprKind::kInfinity);
    case Token::kDifferential: {
      ++position_;
      std::string name = "d";
      for (size_t i = 1; i < text.size(); ++i) {
        if (std::isalpha(static_cast<unsigned char>(text[i]))) name += text[i];
      }
      return SymbolOrConstant(name, real_symbols_);
    }
    default:
      return AtomExpr();
  }
}

ExprPtr Parser::AtomExpr() {
  if (!Among(Peek(), {Token::kLetter, Token::kGreek, Token::kOtherSymbol, Token::kAccent}))
    return nullptr;
  std::string name(Text());
  const bool letter_i = name == "I";
  const bool accent = At(Token::kAccent);
  ++position_;
  if (letter_i && !At(Token::kUnderscore)) return MakeConstant(ExprKind::kImaginary);
  if (accent) name = AccentName(name);
  ExprPtr power;
  std::string subscript;
  for (int i = 0; i < 2; ++i) {
    if (At(Token::kUnderscore) && subscript.empty()) {
      if (!SubscriptText(&subscript)) return nullptr;
    } else if (At(Token::kCaret) && !power) {
      ++position_;
      if (!(power = Script())) return nullptr;
    }
  }
  while (!name.empty() && name.back() == ' ') name.pop_back();
  if (!subscript.empty()) name += subscript.size() > 1 ? "_{" + subscript + "}" : "_" + subscript;
  ExprPtr symbol =
      letter_i ? MakeConstant(ExprKind::kImaginary) : SymbolOrConstant(name, real_symbols_);
  return power ? MakeNode(ExprKind::kPow, {symbol, power}) : symbol;
}

}  // namespace taopd::grading::latex
