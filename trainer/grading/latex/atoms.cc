#include "trainer/grading/latex/grammar.h"

#include <cctype>
#include <map>

#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

// ---- Names of symbols, as latex2sympy2_extended makes them ----
//
// Greek commands and letters get their English names, text loses its spaces and brackets, and
// everything is in lower case.

// Returns the name for an accent with its argument: "\text{ B }" -> "B", "\overline{AB}" ->
// "bar{AB}".
std::string AccentName(const std::string& token) {
  const size_t open = token.find('{');
  std::string command = token.substr(1, open - 1);
  while (!command.empty() && std::isspace(static_cast<unsigned char>(command.back())))
    command.pop_back();
  std::string text = token.substr(open + 1, token.size() - open - 2);
  std::erase(text, ' ');
  if (command.find("text") != std::string::npos || command == "mbox") {
    std::erase_if(text, [](char c) { return c == '(' || c == ')'; });
    return text;
  }
  if (command == "overline") command = "bar";
  if (command == "overrightarrow") command = "vec";
  if (command == "widetilde") command = "tilde";
  if (command.find("math") != std::string::npos) command = "math";
  return command + "{" + text + "}";
}

// Returns the symbol of that name, or the constant for pi and gamma. `real` is false in an answer
// about complex numbers (see kComplexMark).
ExprPtr SymbolOrConstant(const std::string& name, bool real) {
  static const std::map<std::string, std::string> greek_letters = {
      {"\u03B1", "alpha"},    {"\u03B2", "beta"},       {"\u03B3", "gamma"},
      {"\u0393", "gamma"},    {"\u03B4", "delta"},      {"\u0394", "delta"},
      {"\u03B5", "epsilon"},  {"\u03F5", "varepsilon"}, {"\u03B6", "zeta"},
      {"\u03B7", "eta"},      {"\u03B8", "theta"},      {"\u0398", "theta"},
      {"\u03D1", "vartheta"}, {"\u03B9", "iota"},       {"\u03BA", "kappa"},
      {"\u03BB", "lambda"},   {"\u039B", "lambda"},     {"\u03BC", "mu"},
      {"\u03BD", "nu"},       {"\u03BE", "xi"},         {"\u039E", "xi"},
      {"\u03BF", "omicron"},  {"\u03C0", "pi"},         {"\u03A0", "Pi"},
      {"\u03D6", "varpi"},    {"\u03C1", "rho"},        {"\u03F1", "varrho"},
      {"\u03C3", "sigma"},    {"\u03A3", "sigma"},      {"\u03C2", "varsigma"},
      {"\u03C4", "tau"},      {"\u03C5", "upsilon"},    {"\u03A5", "upsilon"},
      {"\u03C6", "phi"},      {"\u03A6", "phi"},        {"\u03D5", "varphi"},
      {"\u03C7", "chi"},      {"\u03C8", "psi"},        {"\u03A8", "psi"},
      {"\u03C9", "omega"},    {"\u03A9", "omega"}};
  std::string text = name;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  text.erase(0, text.find_first_not_of(' '));
  if (const auto found = greek_letters.find(text); found != greek_letters.end())
    text = found->second;
  if (!text.empty() && text[0] == '\\') text.erase(0, 1);
  text = LowerCase(text);
  if (text == "pi") return MakeConstant(ExprKind::kPi);
  if (text == "gamma") return MakeConstant(ExprKind::kEulerGamma);
  return MakeSymbol(real ? text : kComplexMark + text);
}

}  // namespace

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
  if (At(Token::kUnderscore) && !SubscriptText(&name)) return BackTo(start);
  if (Take(Token::kCaret) && !(power = Script())) return BackTo(start);
  const bool braced =
      At(Token::kLeftBrace) && (Peek(1) == Token::kLeftParen || Peek(1) == Token::kLeftBracket);
  if (braced) ++position_;
  Token close;
  if (At(Token::kLeftParen)) {
    close = Token::kRightParen;
  } else if (At(Token::kLeftBracket)) {
    close = Token::kRightBracket;
  } else {
    return BackTo(start);
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
    if (args.size() < 2) return BackTo(start);
  }
  if (!Take(close) || (braced && !Take(Token::kRightBrace))) return BackTo(start);
  ExprPtr call = MakeNode(ExprKind::kCall, std::move(args), name);
  return power ? MakeNode(ExprKind::kPow, {call, power}) : call;
}

ExprPtr Parser::BackTo(size_t start) {
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
