// Whole answers, sets, tuples and relations.
#include "trainer/grading/latex/parser.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "trainer/grading/algebra/real_set.h"
#include "trainer/grading/latex/grammar.h"

namespace taopd::grading::latex {
namespace {

constexpr size_t kMaxLatexBytes = 20000;

// Returns whether an answer is about complex numbers. The signs are a lone i, \mathbb{C}, \det, a
// trace or a rank, and real and imaginary parts.
bool IsAboutComplexNumbers(std::string_view latex) {
  for (const std::string_view sign :
       {"\\mathbb{C}", "\\text{i}", "\\mathrm{i}", "\\imath", "\\det", "\\operatorname{tr}",
        "\\operatorname{rank}", "\\text{rank}", "\\arg{", "\\Re{", "\\Im{", "\\operatorname{Re}",
        "\\operatorname{Im}", "\\text{Re}", "\\text{Im}"}) {
    if (latex.find(sign) != std::string_view::npos) return true;
  }
  const auto in_word = [&](size_t i) {
    return i < latex.size() &&
           (std::isalnum(static_cast<unsigned char>(latex[i])) != 0 || latex[i] == '_');
  };
  for (size_t i = latex.find('i'); i != std::string_view::npos; i = latex.find('i', i + 1)) {
    if ((i == 0 || !in_word(i - 1)) && !in_word(i + 1)) return true;
  }
  return false;
}

std::vector<ExprPtr> Flattened(const std::vector<std::vector<ExprPtr>>& groups) {
  std::vector<ExprPtr> flat;
  for (const auto& group : groups) flat.insert(flat.end(), group.begin(), group.end());
  return flat;
}

}  // namespace

ExprPtr Parser::Answer(std::string_view source) {
  if (ExprPtr e = ElementsRelation(); e && At(Token::kEnd)) return e;
  position_ = 0;
  if (std::vector<std::vector<ExprPtr>> groups;
      SemicolonElements(true, &groups) && At(Token::kEnd)) {
    if (std::optional<ExprPtr> number = CommaNumber(source)) return *number;
    return ElementsToSet(groups);
  }
  position_ = 0;
  if (ExprPtr e = SetRelation(); e && At(Token::kEnd)) return e;
  return nullptr;
}

ExprPtr Parser::ElementsRelation() {
  ExprPtr left = AtomList();
  if (!left || !(At(Token::kIn) || At(Token::kEquals))) return nullptr;
  ++position_;
  std::vector<std::vector<ExprPtr>> groups;
  if (!SemicolonElements(false, &groups)) return nullptr;
  return MakeNode(ExprKind::kEq, {left, ElementsToSet(groups)});
}

ExprPtr Parser::AtomList() {
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

ExprPtr Parser::ElementsToSet(const std::vector<std::vector<ExprPtr>>& groups) {
  if (groups.size() == 1) return groups[0].size() == 1 ? groups[0][0] : MakeFiniteSet(groups[0]);
  const bool single = std::ranges::all_of(groups, [](const auto& g) { return g.size() == 1; });
  std::vector<ExprPtr> elements;
  for (const auto& group : groups)
    elements.push_back(single ? group[0] : MakeNode(ExprKind::kTuple, group));
  return MakeFiniteSet(elements);
}

std::optional<ExprPtr> Parser::CommaNumber(std::string_view source) {
  std::string digits;
  size_t i = source.find_first_not_of(" \t\r\n");
  if (i == std::string_view::npos) return std::nullopt;
  if (source[i] == '-') digits += source[i++];
  const bool is_decimal = source[0] == '0', leads_with_zero = i < source.size() && source[i] == '0';
  size_t group = 0, groups = 0;
  for (; i < source.size(); ++i) {
    const char c = source[i];
    if (c >= '0' && c <= '9') {
      digits += c;
      if (++group > 3) return std::nullopt;
    } else if (c == ',' && group > 0 && (groups == 0 || group == 3)) {
      ++groups;
      group = 0;
      if (is_decimal) digits += '.';
    } else {
      break;
    }
  }
  if (groups == 0 || group != 3) return std::nullopt;
  const bool has_fraction = i < source.size() && source[i] == '.';
  if (has_fraction) {
    digits += '.';
    const size_t first = ++i;
    for (; i < source.size() && std::isdigit(static_cast<unsigned char>(source[i])); ++i)
      digits += source[i];
    if (i == first) return std::nullopt;
  }
  if (source.find_first_not_of(" \t\r\n", i) != std::string_view::npos) return std::nullopt;
  const bool is_zero = digits.find_first_not_of("-0") == std::string::npos;
  const bool is_readable = is_decimal
                               ? groups == 1 && !has_fraction
                               : digits[0] != '-' || !leads_with_zero || has_fraction || is_zero;
  return is_readable ? MakeDecimal(digits) : nullptr;
}

bool Parser::SemicolonElements(bool relations, std::vector<std::vector<ExprPtr>>* groups) {
  do {
    std::vector<ExprPtr> group;
    do {
      if (!Element(relations, &group)) return false;
    } while (Take(Token::kComma));
    groups->push_back(std::move(group));
  } while (Take(Token::kSemicolon));
  return true;
}

bool Parser::EndsElement() const {
  return Among(Peek(), {Token::kEnd, Token::kComma, Token::kSemicolon, Token::kRightParen,
                        Token::kRightBracket, Token::kRightBrace, Token::kRightBraceVisual,
                        Token::kRightParenVisual, Token::kRightBrack, Token::kRightGroup});
}

bool Parser::Element(bool relations, std::vector<ExprPtr>* out) {
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

ExprPtr Parser::RelationChain(ExprPtr left) {
  static constexpr std::pair<Token, ExprKind> kRelations[] = {
      {Token::kEquals, ExprKind::kEq},  {Token::kEquivalent, ExprKind::kEq},
      {Token::kLess, ExprKind::kLt},    {Token::kLessEqual, ExprKind::kLe},
      {Token::kGreater, ExprKind::kGt}, {Token::kGreaterEqual, ExprKind::kGe},
      {Token::kUnequal, ExprKind::kNe}};
  while (true) {
    const bool is_approximate = At(Token::kApprox);
    ExprKind kind = ExprKind::kEq;
    if (!is_approximate) {
      const auto relation =
          std::ranges::find_if(kRelations, [this](const auto& row) { return At(row.first); });
      if (relation == std::end(kRelations)) return left;
      kind = relation->second;
    }
    ++position_;
    ExprPtr right = Expression();
    if (!right) return nullptr;
    if (is_approximate) {
      // "x ~ 1.41" means 1.41. In "\sqrt{2} ~ 1.41" the exact side counts.
      if (IsSymbolsOnly(*left)) left = right;
      continue;
    }
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

ExprPtr Parser::SetRelation() {
  const size_t start = position_;
  if (ExprPtr left = AtomList(); left && (At(Token::kIn) || At(Token::kEquals))) {
    ++position_;
    ExprPtr right = SetRelation();
    return right ? MakeNode(ExprKind::kEq, {left, right}) : nullptr;
  }
  position_ = start;
  return SetOperation(0);
}

ExprPtr Parser::SetOperation(int level) {
  static constexpr Token kOperators[] = {Token::kSetMinus, Token::kUnion, Token::kIntersection};
  static constexpr ExprKind kKinds[] = {ExprKind::kComplement, ExprKind::kUnion,
                                        ExprKind::kIntersection};
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

ExprPtr Parser::SetGroup() {
  DepthGuard guard(this);
  if (guard.Exceeded()) return nullptr;
  const size_t start = position_;
  if (Take(Token::kLeftParen)) {
    if (ExprPtr inner = SetOperation(0); inner && Take(Token::kRightParen)) return inner;
    position_ = start;
  }
  return SetAtom();
}

ExprPtr Parser::SetAtom() {
  DepthGuard guard(this);
  if (guard.Exceeded()) return nullptr;
  const size_t start = position_;
  if (ExprPtr e = IntervalAtom()) return e;
  position_ = start;
  if (At(Token::kNamedSet)) {
    const std::string_view text = Text();
    ++position_;
    static const std::map<std::string_view, std::string> names = {{"\u2115", "N"}, {"\u2124", "Z"},
                                                                  {"\u211A", "Q"}, {"\u211D", "R"},
                                                                  {"\u2102", "C"}, {"\u2119", "P"}};
    const auto found = names.find(text);
    return MakeNode(ExprKind::kNamedSet, {},
                    found != names.end() ? found->second : std::string(text.substr(8, 1)));
  }
  if (Take(Token::kEmptySet)) return MakeNode(ExprKind::kNamedSet, {});
  if (At(Token::kLeftBrace) && Peek(1) == Token::kRightBrace) {
    position_ += 2;
    return MakeNode(ExprKind::kNamedSet, {});
  }
  static constexpr std::pair<Token, Token> kTuples[] = {
      {Token::kLeftParen, Token::kRightParen},
      {Token::kLeftParenVisual, Token::kRightParenVisual},
      {Token::kLeftBracket, Token::kRightBracket}};
  for (const auto& [open, close] : kTuples) {
    if (!At(open)) continue;
    ++position_;
    std::vector<std::vector<ExprPtr>> groups;
    if (!SemicolonElements(true, &groups) || !Take(close)) return nullptr;
    std::vector<ExprPtr> flat = Flattened(groups);
    return flat.size() == 1 ? flat[0] : MakeNode(ExprKind::kTuple, std::move(flat));
  }
  const bool boxed = Take(Token::kBoxed);
  for (const auto& [open, close] : {std::pair{Token::kLeftBrace, Token::kRightBrace},
                                    std::pair{Token::kLeftBraceVisual, Token::kRightBraceVisual}}) {
    if (!At(open)) continue;
    ++position_;
    std::vector<std::vector<ExprPtr>> groups;
    if (!SemicolonElements(true, &groups) || !Take(close)) return nullptr;
    return boxed ? ElementsToSet(groups) : MakeFiniteSet(Flattened(groups));
  }
  return nullptr;
}

ExprPtr Parser::IntervalAtom() {
  if (!Among(Peek(), {Token::kLeftBracket, Token::kLeftParen, Token::kLeftParenVisual,
                      Token::kLeftBrack, Token::kLeftGroup})) {
    return nullptr;
  }
  const bool left_open = !At(Token::kLeftBracket) && !At(Token::kLeftBrack);
  ++position_;
  ExprPtr start = Expression();
  if (!start || !Take(Token::kComma)) return nullptr;
  ExprPtr end = Expression();
  if (!end || !Among(Peek(), {Token::kRightBracket, Token::kRightParen, Token::kRightParenVisual,
                              Token::kRightBrack, Token::kRightGroup})) {
    return nullptr;
  }
  const bool right_open = !At(Token::kRightBracket) && !At(Token::kRightBrack);
  ++position_;
  return MakeInterval(start, end, left_open, right_open);
}

ExprPtr Parse(std::string_view latex) {
  if (latex.size() > kMaxLatexBytes) return nullptr;
  const auto tokens = Tokenize(latex);
  if (!tokens) return nullptr;
  return Parser(*tokens, !IsAboutComplexNumbers(latex)).Answer(latex);
}

}  // namespace taopd::grading::latex
