#include "trainer/grading/latex_parser.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "trainer/grading/evaluate.h"
#include "trainer/grading/latex_lexer.h"
#include "trainer/grading/real_set.h"
#include "trainer/grading/symbol_names.h"

namespace taopd {
namespace {

constexpr int64_t kMaxSteps = 300000;
constexpr size_t kMaxLatexBytes = 20000;

// Recursive descent; every method leaves the position behind what it read, or returns nullptr (and the
// caller gives up or goes back).
class LatexParser {
 public:
  explicit LatexParser(const std::vector<LexedToken>& tokens) : tokens_(tokens) {}

  // The three readings of a whole answer, in the order of the grammar.
  ExprPtr Answer(std::string_view source) {
    if (ExprPtr e = ElementsRelation(); e && At(Token::kEnd)) return e;
    position_ = 0;
    if (std::vector<std::vector<ExprPtr>> groups; SemicolonElements(true, &groups) && At(Token::kEnd)) {
      if (ExprPtr number = CommaNumber(source)) return number;
      return ElementsToSet(groups);
    }
    position_ = 0;
    if (ExprPtr e = SetRelation(); e && At(Token::kEnd)) return e;
    return nullptr;
  }

 private:
  class DepthGuard {
   public:
    explicit DepthGuard(LatexParser* parser) : parser_(parser) { ++parser_->depth_; }
    ~DepthGuard() { --parser_->depth_; }
    bool Exceeded() const { return parser_->depth_ > kMaxExpressionDepth || ++parser_->steps_ > kMaxSteps; }

   private:
    LatexParser* parser_;
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
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  }

  // --- sets, tuples, elements ------------------------------------------------------------------

  ExprPtr ElementsRelation() {
    ExprPtr left = AtomList();
    if (!left || !(At(Token::kIn) || At(Token::kEquals))) return nullptr;
    ++position_;
    std::vector<std::vector<ExprPtr>> groups;
    if (!SemicolonElements(false, &groups)) return nullptr;
    return MakeNode(ExprKind::kEq, {left, ElementsToSet(groups)});
  }

  // a, or (a, b, c): symbols only.
  ExprPtr AtomList() {
    if (!At(Token::kLeftParen)) return AtomExpr();
    ++position_;
    std::vector<ExprPtr> atoms;
    do {
      ExprPtr atom = AtomExpr();
      if (!atom) return nullptr;
      atoms.push_back(std::move(atom));
    } while (Take(Token::kComma));
    if (!Take(Token::kRightParen)) return nullptr;
    return atoms.size() == 1 ? atoms[0] : MakeNode(ExprKind::kTuple, std::move(atoms));
  }

  static ExprPtr ElementsToSet(const std::vector<std::vector<ExprPtr>>& groups) {
    if (groups.size() == 1) return groups[0].size() == 1 ? groups[0][0] : MakeFiniteSet(groups[0]);
    const bool single = std::all_of(groups.begin(), groups.end(), [](const auto& g) { return g.size() == 1; });
    std::vector<ExprPtr> elements;
    for (const auto& group : groups) elements.push_back(single ? group[0] : MakeNode(ExprKind::kTuple, group));
    return MakeFiniteSet(elements);
  }

  // 1,234 and 1,234,567.5 are numbers when nothing else stands there.
  static ExprPtr CommaNumber(std::string_view source) {
    std::string digits;
    size_t i = source.find_first_not_of(" \t\r\n");
    if (i == std::string_view::npos) return nullptr;
    if (source[i] == '-') digits += source[i++];
    size_t group = 0, groups = 0;
    for (; i < source.size(); ++i) {
      const char c = source[i];
      if (c >= '0' && c <= '9') {
        digits += c;
        if (++group > 3) return nullptr;
      } else if (c == ',' && group > 0 && (groups == 0 || group == 3)) {
        ++groups;
        group = 0;
        if (source[0] == '0' && groups == 1) digits += '.';
      } else {
        break;
      }
    }
    if (groups == 0 || group != 3) return nullptr;
    if (i < source.size() && source[i] == '.') {
      digits += '.';
      const size_t first = ++i;
      for (; i < source.size() && std::isdigit(static_cast<unsigned char>(source[i])); ++i) digits += source[i];
      if (i == first) return nullptr;
    }
    if (source.find_first_not_of(" \t\r\n", i) != std::string_view::npos) return nullptr;
    Rational value;
    bool is_float = false;
    if (!ParseDecimal(digits, &value, &is_float)) return nullptr;
    return is_float ? MakeFloat(value) : MakeRational(value);
  }

  bool SemicolonElements(bool relations, std::vector<std::vector<ExprPtr>>* groups) {
    do {
      std::vector<ExprPtr> group;
      do {
        if (!Element(relations, &group)) return false;
      } while (Take(Token::kComma));
      groups->push_back(std::move(group));
    } while (Take(Token::kSemicolon));
    return true;
  }

  bool EndsElement() const {
    return Among(Peek(), {Token::kEnd, Token::kComma, Token::kSemicolon, Token::kRightParen, Token::kRightBracket,
                          Token::kRightBrace, Token::kRightBraceVisual, Token::kRightParenVisual, Token::kRightBrack,
                          Token::kRightGroup});
  }

  bool Element(bool relations, std::vector<ExprPtr>* out) {
    DepthGuard guard(this);
    if (guard.Exceeded()) return false;
    if (Take(Token::kPlusMinus)) {
      ExprPtr e = Expression();
      if (!e) return false;
      out->push_back(Negate(e));
      out->push_back(e);
      return true;
    }
    const size_t start = position_;
    if (ExprPtr set = SetAtom(); set && EndsElement()) {
      out->push_back(std::move(set));
      return true;
    }
    position_ = start;
    ExprPtr left = Expression();
    if (!left) return false;
    if (Take(Token::kPlusMinus)) {
      ExprPtr right = Expression();
      if (!right) return false;
      out->push_back(MakeAdd(left, right));
      out->push_back(MakeAdd(left, Negate(right)));
      return true;
    }
    if (relations && !(left = RelationChain(std::move(left)))) return false;
    out->push_back(std::move(left));
    return true;
  }

  ExprPtr RelationChain(ExprPtr left) {
    while (true) {
      ExprKind kind;
      switch (Peek()) {
        case Token::kEquals: case Token::kEquivalent: kind = ExprKind::kEq; break;
        case Token::kLess: kind = ExprKind::kLt; break;
        case Token::kLessEqual: kind = ExprKind::kLe; break;
        case Token::kGreater: kind = ExprKind::kGt; break;
        case Token::kGreaterEqual: kind = ExprKind::kGe; break;
        case Token::kUnequal: kind = ExprKind::kNe; break;
        case Token::kApprox: {
          ++position_;
          ExprPtr right = Expression();
          if (!right) return nullptr;
          if (IsSymbolsOnly(*left)) left = right;  // else the exact side counts
          continue;
        }
        default: return left;
      }
      ++position_;
      ExprPtr right = Expression();
      if (!right) return nullptr;
      if (left->kind == ExprKind::kAnd) {
        std::vector<ExprPtr> chain = left->args;
        chain.push_back(MakeNode(kind, {chain.back()->args[1], right}));
        left = MakeNode(ExprKind::kAnd, std::move(chain));
      } else if (IsRelation(*left)) {
        left = MakeNode(ExprKind::kAnd, {left, MakeNode(kind, {left->args[1], right})});
      } else {
        left = MakeNode(kind, {left, right});
      }
    }
  }

  ExprPtr SetRelation() {
    const size_t start = position_;
    if (ExprPtr left = AtomList(); left && (At(Token::kIn) || At(Token::kEquals))) {
      ++position_;
      ExprPtr right = SetRelation();
      return right ? MakeNode(ExprKind::kEq, {left, right}) : nullptr;
    }
    position_ = start;
    return SetOperation(0);
  }

  // \setminus binds loosest, \cap tightest.
  ExprPtr SetOperation(int level) {
    static constexpr Token kOperators[] = {Token::kSetMinus, Token::kUnion, Token::kIntersection};
    static constexpr ExprKind kKinds[] = {ExprKind::kComplement, ExprKind::kUnion, ExprKind::kIntersection};
    if (level == 3) return SetGroup();
    ExprPtr left = SetOperation(level + 1);
    while (left && Take(kOperators[level])) {
      ExprPtr right = SetOperation(level + 1);
      if (!right) return nullptr;
      for (ExprPtr* side : {&left, &right}) {
        if ((*side)->kind == ExprKind::kTuple) *side = MakeFiniteSet((*side)->args);
      }
      left = MakeNode(kKinds[level], {left, right});
    }
    return left;
  }

  ExprPtr SetGroup() {
    DepthGuard guard(this);
    if (guard.Exceeded()) return nullptr;
    const size_t start = position_;
    if (Take(Token::kLeftParen)) {
      if (ExprPtr inner = SetOperation(0); inner && Take(Token::kRightParen)) return inner;
      position_ = start;
    }
    return SetAtom();
  }

  ExprPtr SetAtom() {
    DepthGuard guard(this);
    if (guard.Exceeded()) return nullptr;
    const size_t start = position_;
    if (ExprPtr e = IntervalAtom()) return e;
    position_ = start;
    if (At(Token::kNamedSet)) {
      const std::string_view text = Text();
      ++position_;
      static const std::map<std::string_view, std::string> names = {{"ℕ", "N"}, {"ℤ", "Z"}, {"ℚ", "Q"},
                                                                    {"ℝ", "R"}, {"ℂ", "C"}, {"ℙ", "P"}};
      const auto found = names.find(text);
      return MakeNode(ExprKind::kNamedSet, {}, found != names.end() ? found->second : std::string(text.substr(8, 1)));
    }
    if (Take(Token::kEmptySet)) return MakeNode(ExprKind::kNamedSet, {});
    if (At(Token::kLeftBrace) && Peek(1) == Token::kRightBrace) {
      position_ += 2;
      return MakeNode(ExprKind::kNamedSet, {});
    }
    static constexpr std::pair<Token, Token> kTuples[] = {{Token::kLeftParen, Token::kRightParen},
                                                          {Token::kLeftParenVisual, Token::kRightParenVisual},
                                                          {Token::kLeftBracket, Token::kRightBracket}};
    for (const auto& [open, close] : kTuples) {
      if (!At(open)) continue;
      ++position_;
      std::vector<std::vector<ExprPtr>> groups;
      if (!SemicolonElements(true, &groups) || !Take(close)) return nullptr;
      std::vector<ExprPtr> flat;
      for (const auto& group : groups) flat.insert(flat.end(), group.begin(), group.end());
      return flat.size() == 1 ? flat[0] : MakeNode(ExprKind::kTuple, std::move(flat));
    }
    const bool boxed = Take(Token::kBoxed);
    for (const auto& [open, close] : {std::pair{Token::kLeftBrace, Token::kRightBrace},
                                      std::pair{Token::kLeftBraceVisual, Token::kRightBraceVisual}}) {
      if (!At(open)) continue;
      ++position_;
      std::vector<std::vector<ExprPtr>> groups;
      if (!SemicolonElements(true, &groups) || !Take(close)) return nullptr;
      if (boxed) return ElementsToSet(groups);
      std::vector<ExprPtr> flat;
      for (const auto& group : groups) flat.insert(flat.end(), group.begin(), group.end());
      return MakeFiniteSet(flat);
    }
    return nullptr;
  }

  ExprPtr IntervalAtom() {
    if (!Among(Peek(), {Token::kLeftBracket, Token::kLeftParen, Token::kLeftParenVisual, Token::kLeftBrack,
                        Token::kLeftGroup})) {
      return nullptr;
    }
    const bool left_open = !At(Token::kLeftBracket) && !At(Token::kLeftBrack);
    ++position_;
    ExprPtr start = Expression();
    if (!start || !Take(Token::kComma)) return nullptr;
    ExprPtr end = Expression();
    if (!end || !Among(Peek(), {Token::kRightBracket, Token::kRightParen, Token::kRightParenVisual, Token::kRightBrack,
                                Token::kRightGroup})) {
      return nullptr;
    }
    const bool right_open = !At(Token::kRightBracket) && !At(Token::kRightBrack);
    ++position_;
    return MakeInterval(start, end, left_open, right_open);
  }

  // --- arithmetic -------------------------------------------------------------------------------

  ExprPtr Expression() {
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

  static ExprPtr Divide(const ExprPtr& top, const ExprPtr& bottom) {
    if (IsInteger(*bottom) && bottom->number == 0 && IsNumber(*top)) return MakeNode(ExprKind::kCall, {}, "zoo");
    if (IsInteger(*top) && IsInteger(*bottom)) return MakeRational(top->number / bottom->number);
    return MakeMul(top, MakeNode(ExprKind::kPow, {bottom, MakeRational(-1)}));
  }

  ExprPtr Product(bool functions) {
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

  ExprPtr Unary(bool functions) {
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
        product = MakeRational(whole < 0 ? Rational(whole - product->number) : Rational(whole + product->number));
      } else {
        product = MakeMul(factors[i], product);
      }
    }
    return product;
  }

  bool StartsPostfix(bool functions) const {
    switch (Peek()) {
      case Token::kLeftParen: case Token::kLeftGroup: case Token::kLeftBrace: case Token::kLeftBracket:
      case Token::kLeftBraceVisual: case Token::kLeftBraceCommand: case Token::kLeftBrack: case Token::kBoxed:
      case Token::kLeftVert: case Token::kLeftFloor: case Token::kLeftCeil: case Token::kFrac: case Token::kBinom:
      case Token::kMatrixBegin: case Token::kDetBegin: case Token::kNumber: case Token::kPercentNumber:
      case Token::kScientific: case Token::kLetter: case Token::kCapitalE: case Token::kGreek:
      case Token::kOtherSymbol: case Token::kAccent: case Token::kDifferential: case Token::kInfinity:
      case Token::kGamma:
        return true;
      case Token::kBar: return !in_bars_;
      case Token::kVert: return !in_verts_;
      case Token::kFunction: case Token::kMultiFunction: case Token::kOperatorName: case Token::kBigOperator:
      case Token::kLimit: case Token::kSqrt: case Token::kEuler:
        return functions;
      default: return false;
    }
  }

  ExprPtr Postfix() {
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

  static ExprPtr Transpose(const Expr& m) {
    const int columns = static_cast<int>(m.args.size()) / m.rows;
    auto t = std::make_shared<Expr>();
    t->kind = ExprKind::kMatrix;
    t->rows = columns;
    for (int c = 0; c < columns; ++c) {
      for (int r = 0; r < m.rows; ++r) t->args.push_back(m.args[static_cast<size_t>(r * columns + c)]);
    }
    return t;
  }

  ExprPtr Power() {
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

  // What may follow ^ : one atom, or an expression in braces.
  ExprPtr Script() {
    if (!At(Token::kLeftBrace)) return Atom();
    ++position_;
    ExprPtr e = Scoped([this] { return Expression(); });
    return e && Take(Token::kRightBrace) ? e : nullptr;
  }

  template <typename Parse>
  ExprPtr Scoped(const Parse& parse) {
    const bool bars = in_bars_, verts = in_verts_;
    in_bars_ = in_verts_ = false;
    ExprPtr e = parse();
    in_bars_ = bars;
    in_verts_ = verts;
    return e;
  }

  bool SkipSubscript() {
    std::string text;
    return SubscriptText(&text);
  }

  // _a or _{...}: its source without spaces.
  bool SubscriptText(std::string* text) {
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

  ExprPtr Group(Token close) {
    ++position_;
    ExprPtr e = Scoped([this] { return Expression(); });
    return e && Take(close) ? e : nullptr;
  }

  ExprPtr Wrapped(Token close, const char* function) {
    ExprPtr e = Group(close);
    return e ? MakeNode(ExprKind::kFunction, {e}, function) : nullptr;
  }

  ExprPtr Braced() { return At(Token::kLeftBrace) ? Group(Token::kRightBrace) : nullptr; }

  ExprPtr Bars(Token bar, bool* inside) {
    ++position_;
    const bool bars = in_bars_, verts = in_verts_;
    in_bars_ = in_verts_ = false;
    *inside = true;
    ExprPtr e = Expression();
    in_bars_ = bars;
    in_verts_ = verts;
    return e && Take(bar) ? MakeNode(ExprKind::kFunction, {e}, "abs") : nullptr;
  }

  ExprPtr Component() {
    switch (Peek()) {
      case Token::kLeftParen: return Group(Token::kRightParen);
      case Token::kLeftGroup: return Group(Token::kRightGroup);
      case Token::kLeftBracket: return Group(Token::kRightBracket);
      case Token::kLeftBraceVisual: return Group(Token::kRightBraceVisual);
      case Token::kLeftBraceCommand: return Group(Token::kRightBraceCommand);
      case Token::kLeftBrack: return Group(Token::kRightBrack);
      case Token::kLeftBrace: return BraceOrChoose();
      case Token::kBoxed: ++position_; return Braced();
      case Token::kBar: return Bars(Token::kBar, &in_bars_);
      case Token::kVert: return Bars(Token::kVert, &in_verts_);
      case Token::kLeftVert: return Wrapped(Token::kRightVert, "abs");
      case Token::kLeftFloor: return Wrapped(Token::kRightFloor, "floor");
      case Token::kLeftCeil: return Wrapped(Token::kRightCeil, "ceiling");
      case Token::kFrac: case Token::kBinom: return TwoBraced();
      case Token::kMatrixBegin: case Token::kDetBegin: return MatrixOrDeterminant();
      case Token::kSqrt: return Root();
      case Token::kEuler: return Euler();
      case Token::kFunction: case Token::kOperatorName: return Function();
      case Token::kMultiFunction: return MultiFunction();
      case Token::kBigOperator: case Token::kLimit: return BigOperator();
      case Token::kGamma:
        if (Peek(1) == Token::kLeftParen) {
          ++position_;
          return Wrapped(Token::kRightParen, "gamma");
        }
        return Atom();
      case Token::kLetter: case Token::kGreek: case Token::kOtherSymbol: case Token::kAccent:
        if (ExprPtr call = Call()) return call;
        return Atom();
      default: return Atom();
    }
  }

  ExprPtr BraceOrChoose() {
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

  ExprPtr TwoBraced() {
    const bool fraction = At(Token::kFrac);
    ++position_;
    ExprPtr top = Braced();
    ExprPtr bottom = top ? Braced() : nullptr;
    if (!bottom) return nullptr;
    return fraction ? Divide(top, bottom) : MakeNode(ExprKind::kFunction, {top, bottom}, "binomial");
  }

  ExprPtr MatrixOrDeterminant() {
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

  ExprPtr Root() {
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

  ExprPtr Euler() {
    ++position_;
    if (!Take(Token::kCaret)) return MakeConstant(ExprKind::kE);
    ExprPtr exponent = Script();
    return exponent ? MakeNode(ExprKind::kPow, {MakeConstant(ExprKind::kE), exponent}) : nullptr;
  }

  ExprPtr Function() {
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
      static constexpr std::string_view kInvertible[] = {"sin", "cos", "tan", "csc", "sec",
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

  ExprPtr Arguments(const std::string& name) {
    if (!Take(Token::kLeftParen)) return nullptr;
    std::vector<ExprPtr> args;
    do {
      ExprPtr e = Scoped([this] { return Expression(); });
      if (!e) return nullptr;
      args.push_back(std::move(e));
    } while (Take(Token::kComma));
    return Take(Token::kRightParen) ? MakeNode(ExprKind::kFunction, std::move(args), name) : nullptr;
  }

  ExprPtr MultiFunction() {
    const std::string name(Text().substr(1));
    ++position_;
    return Arguments(name);
  }

  // Sums, integrals and limits are compared by what they say, not by their value.
  ExprPtr BigOperator() {
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

  // f(x), f(x,y), f^2(x), f[x]: a name, and in brackets one atom or a list. nullptr and no move when
  // what follows is not that.
  ExprPtr Call() {
    const size_t start = position_;
    std::string name(Text());
    ++position_;
    ExprPtr power;
    if (At(Token::kUnderscore) && !SubscriptText(&name)) return Back(start);
    if (Take(Token::kCaret) && !(power = Script())) return Back(start);
    const bool braced = At(Token::kLeftBrace) && (Peek(1) == Token::kLeftParen || Peek(1) == Token::kLeftBracket);
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

  ExprPtr Back(size_t start) {
    position_ = start;
    return nullptr;
  }

  ExprPtr Atom() {
    DepthGuard guard(this);
    if (guard.Exceeded()) return nullptr;
    const std::string text(Text());
    switch (Peek()) {
      case Token::kNumber: {
        ++position_;
        if (At(Token::kUnderscore) && !SkipSubscript()) return nullptr;  // the base of a numeral: not read
        return Number(text);
      }
      case Token::kScientific: ++position_; return Number(text);
      case Token::kPercentNumber: {
        ++position_;
        ExprPtr number = Number(text.substr(0, text.find_first_not_of("0123456789.")));
        return number ? MakeNode(ExprKind::kPercent, {number}) : nullptr;
      }
      case Token::kCapitalE: ++position_; return MakeSymbol("e");
      case Token::kGamma: ++position_; return MakeConstant(ExprKind::kEulerGamma);
      case Token::kInfinity: ++position_; return MakeConstant(ExprKind::kInfinity);
      case Token::kDifferential: {
        ++position_;
        std::string name = "d";
        for (size_t i = 1; i < text.size(); ++i) {
          if (std::isalpha(static_cast<unsigned char>(text[i]))) name += text[i];
        }
        return MakeSymbol(name);
      }
      default: return AtomExpr();
    }
  }

  static ExprPtr Number(const std::string& text) {
    Rational value;
    bool is_float = false;
    if (!ParseDecimal(text, &value, &is_float)) return nullptr;
    return is_float ? MakeFloat(value) : MakeRational(value);
  }

  // A symbol with its subscript (part of the name) and superscript (a power), in either order.
  ExprPtr AtomExpr() {
    if (!Among(Peek(), {Token::kLetter, Token::kGreek, Token::kOtherSymbol, Token::kAccent})) return nullptr;
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
    ExprPtr symbol = letter_i ? MakeConstant(ExprKind::kImaginary) : SymbolOrConstant(name);
    return power ? MakeNode(ExprKind::kPow, {symbol, power}) : symbol;
  }

  const std::vector<LexedToken>& tokens_;
  size_t position_ = 0;
  int depth_ = 0;
  int64_t steps_ = 0;
  bool in_bars_ = false, in_verts_ = false;
};

}  // namespace

ExprPtr ParseLatex(std::string_view latex) {
  if (latex.size() > kMaxLatexBytes) return nullptr;
  const auto tokens = Tokenize(latex);
  if (!tokens) return nullptr;
  return LatexParser(*tokens).Answer(latex);
}

}  // namespace taopd
