#include <string>

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

class ArithmeticParser {
 public:
  explicit ArithmeticParser(std::string_view text) : text_(text) {}

  ExprPtr Parse() {
    ExprPtr e = Sum();
    return e && SkipSpaces(text_, i_) == text_.size() ? e : nullptr;
  }

 private:
  char Next() {
    i_ = SkipSpaces(text_, i_);
    return i_ < text_.size() ? text_[i_] : '\0';
  }

  ExprPtr Sum() {
    if (++depth_ > kMaxExpressionDepth) return nullptr;
    ExprPtr left = Product();
    while (left && (Next() == '+' || Next() == '-')) {
      const bool minus = text_[i_++] == '-';
      ExprPtr right = Product();
      if (!right) return nullptr;
      left = MakeAdd(left, minus ? Negate(right) : right);
    }
    --depth_;
    return left;
  }

  ExprPtr Product() {
    ExprPtr left = Unary();
    while (left && (Next() == '*' || Next() == '/')) {
      const bool divide = text_[i_++] == '/';
      // Floor division is not supported: no answer is written with it.
      if (divide && Next() == '/') return nullptr;
      ExprPtr right = Unary();
      if (!right) return nullptr;
      if (!divide) {
        left = MakeMul(left, right);
      } else if (IsInteger(*right) && right->number == 0) {
        return nullptr;
      } else {
        left = MakeMul(left, MakeNode(ExprKind::kPow, {right, MakeRational(-1)}));
      }
    }
    return left;
  }

  ExprPtr Unary() {
    if (++depth_ > kMaxExpressionDepth) return nullptr;
    const char sign = Next();
    ExprPtr e;
    if (sign == '-' || sign == '+') {
      ++i_;
      e = Unary();
      if (e && sign == '-') e = Negate(e);
    } else {
      e = Atom();
      if (e && (Next() == '^' || text_.substr(i_, 2) == "**")) {
        i_ += Next() == '^' ? 1 : 2;
        // Powers associate to the right: 2^3^2 = 2^9.
        ExprPtr exponent = Unary();
        e = exponent ? MakeNode(ExprKind::kPow, {e, exponent}) : nullptr;
      }
    }
    --depth_;
    return e;
  }

  ExprPtr Atom() {
    if (Next() == '(') {
      ++i_;
      ExprPtr e = Sum();
      if (!e || Next() != ')') return nullptr;
      ++i_;
      return e;
    }
    const size_t begin = i_;
    while (i_ < text_.size() && (IsDigit(text_[i_]) || text_[i_] == '.')) ++i_;
    const std::string digits(text_.substr(begin, i_ - begin));
    // A leading zero is an error in Python, except in 0 and 0.5.
    if (digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos &&
        digits.find('.') == std::string::npos) {
      return nullptr;
    }
    return MakeDecimal(digits);
  }

  const std::string_view text_;
  size_t i_ = 0;
  int depth_ = 0;
};

}  // namespace

ExprPtr ParseArithmetic(std::string_view text) {
  constexpr size_t kMaxBytes = 4000;
  return text.size() > kMaxBytes ? nullptr : ArithmeticParser(text).Parse();
}

}  // namespace taopd::grading
