#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

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

}  // namespace taopd::grading
