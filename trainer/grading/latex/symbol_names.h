// Names of symbols as latex2sympy2_extended makes them: Greek commands and letters by their English
// name, text without spaces and brackets, everything in lower case.
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"

namespace taopd {

// "\text{ B }" -> "B", "\overline{AB}" -> "bar{AB}".
std::string AccentName(const std::string& token);

// The symbol of that name; pi and gamma are constants. Symbols stand for real numbers, except in an
// answer that speaks of complex ones: those (`real` false) are other symbols, as sympy's
// assumptions make them, and their names begin with kComplexMark.
inline constexpr char kComplexMark = '~';
ExprPtr SymbolOrConstant(const std::string& name, bool real);

// A symbol's name without its mark.
inline std::string_view PlainName(const Expr& symbol) {
  std::string_view name = symbol.name;
  if (!name.empty() && name[0] == kComplexMark) name.remove_prefix(1);
  return name;
}

// The signs of complex numbers: a lone i, \mathbb{C}, \det, a trace or a rank, real and imaginary
// parts.
bool SpeaksOfComplexNumbers(std::string_view latex);

}  // namespace taopd
