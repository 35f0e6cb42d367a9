#include "trainer/grading/algebra/expression.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

namespace taopd::grading {

ExprPtr MakeRational(Rational value) {
  auto e = std::make_shared<Expr>();
  e->number = std::move(value);
  return e;
}

ExprPtr MakeFloat(Rational value) {
  auto e = std::make_shared<Expr>();
  e->kind = ExprKind::kFloat;
  e->number = std::move(value);
  return e;
}

ExprPtr MakeSymbol(std::string name) { return MakeNode(ExprKind::kSymbol, {}, std::move(name)); }
ExprPtr MakeConstant(ExprKind kind) { return MakeNode(kind, {}); }

ExprPtr MakeNode(ExprKind kind, std::vector<ExprPtr> args, std::string name) {
  auto e = std::make_shared<Expr>();
  e->kind = kind;
  e->args = std::move(args);
  e->name = std::move(name);
  return e;
}

namespace {

ExprPtr Splice(ExprKind kind, ExprPtr left, ExprPtr right) {
  std::vector<ExprPtr> args;
  for (ExprPtr* side : {&left, &right}) {
    if ((*side)->kind == kind) {
      args.insert(args.end(), (*side)->args.begin(), (*side)->args.end());
    } else {
      args.push_back(std::move(*side));
    }
  }
  return MakeNode(kind, std::move(args));
}

template <typename Predicate>
bool Any(const Expr& e, const Predicate& predicate) {
  return predicate(e) ||
         std::ranges::any_of(e.args, [&](const ExprPtr& arg) { return Any(*arg, predicate); });
}

}  // namespace

ExprPtr MakeAdd(ExprPtr left, ExprPtr right) {
  return Splice(ExprKind::kAdd, std::move(left), std::move(right));
}
ExprPtr MakeMul(ExprPtr left, ExprPtr right) {
  return Splice(ExprKind::kMul, std::move(left), std::move(right));
}

ExprPtr Negate(ExprPtr value) {
  if (value->kind == ExprKind::kRational) return MakeRational(-value->number);
  if (value->kind == ExprKind::kFloat) return MakeFloat(-value->number);
  return MakeMul(MakeRational(-1), std::move(value));
}

ExprPtr MakeFiniteSet(const std::vector<ExprPtr>& elements) {
  std::set<std::string> seen;
  std::vector<ExprPtr> kept;
  for (const ExprPtr& element : elements) {
    if (seen.insert(CanonicalText(*element)).second) kept.push_back(element);
  }
  return kept.empty() ? MakeNode(ExprKind::kNamedSet, {})
                      : MakeNode(ExprKind::kFiniteSet, std::move(kept));
}

std::string CanonicalText(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kRational:
      return e.number.str();
    case ExprKind::kFloat:
      return "~" + e.number.str();
    case ExprKind::kSymbol:
      return "'" + e.name + "'";
    default:
      break;
  }
  std::vector<std::string> parts;
  parts.reserve(e.args.size());
  for (const ExprPtr& arg : e.args) parts.push_back(CanonicalText(*arg));
  if (e.kind == ExprKind::kAdd || e.kind == ExprKind::kMul || e.kind == ExprKind::kFiniteSet ||
      e.kind == ExprKind::kUnion || e.kind == ExprKind::kIntersection) {
    std::ranges::sort(parts);
  }
  std::string text = "#" + std::to_string(static_cast<int>(e.kind)) + e.name;
  if (e.kind == ExprKind::kInterval) text += e.left_open ? "(" : "[";
  if (e.kind == ExprKind::kInterval) text += e.right_open ? ")" : "]";
  if (e.kind == ExprKind::kMatrix) text += std::to_string(e.rows);
  text += '{';
  for (const std::string& part : parts) text += part + ",";
  return text + "}";
}

ExprPtr MakeDecimal(const std::string& text) {
  size_t i = 0;
  bool negative = false;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) negative = text[i++] == '-';
  std::string digits;
  int scale = 0;
  bool point = false;
  for (; i < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[i])) || (text[i] == '.' && !point));
       ++i) {
    if (text[i] == '.') {
      point = true;
    } else {
      digits += text[i];
      scale += point ? 1 : 0;
    }
  }
  if (digits.empty()) return nullptr;
  int exponent = 0;
  bool scientific = false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    scientific = true;
    char* end = nullptr;
    const long parsed = std::strtol(text.c_str() + i + 1, &end, 10);
    if (end == text.c_str() + i + 1 || parsed > kMaxDecimalExponent ||
        parsed < -kMaxDecimalExponent)
      return nullptr;
    exponent = static_cast<int>(parsed);
    i = static_cast<size_t>(end - text.c_str());
  }
  if (i != text.size() || digits.size() > static_cast<size_t>(kMaxDecimalExponent)) return nullptr;
  // A leading 0 would read as octal.
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  Rational number{BigInteger(digits)};
  const int shift = exponent - scale;
  const BigInteger power =
      boost::multiprecision::pow(BigInteger(10), static_cast<unsigned>(std::abs(shift)));
  if (shift >= 0) {
    number *= power;
  } else {
    number /= power;
  }
  if (negative) number = -number;
  return point || scientific ? MakeFloat(std::move(number)) : MakeRational(std::move(number));
}

bool HasFloat(const Expr& e) {
  return Any(e, [](const Expr& n) { return n.kind == ExprKind::kFloat; });
}

bool HasSymbols(const Expr& e) {
  return Any(
      e, [](const Expr& n) { return n.kind == ExprKind::kSymbol || n.kind == ExprKind::kCall; });
}

bool HasCalls(const Expr& e) {
  return Any(e, [](const Expr& n) { return n.kind == ExprKind::kCall; });
}

bool HasTwoSymbols(const Expr& e) {
  const std::string* first = nullptr;
  return Any(e, [&](const Expr& n) {
    if (n.kind != ExprKind::kSymbol) return false;
    if (first == nullptr) first = &n.name;
    return n.name != *first;
  });
}

bool IsSymbolsOnly(const Expr& e) {
  if (e.kind == ExprKind::kSymbol) return true;
  if (e.kind == ExprKind::kPow && e.args[1]->kind == ExprKind::kRational &&
      e.args[1]->number == -1) {
    return IsSymbolsOnly(*e.args[0]);
  }
  return !e.args.empty() &&
         std::ranges::all_of(e.args, [](const ExprPtr& arg) { return IsSymbolsOnly(*arg); });
}

}  // namespace taopd::grading
