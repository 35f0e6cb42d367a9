// The words of the grammar of latex2sympy2_extended 1.11.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/grading/latex/lexer.h"

namespace taopd::grading::latex {

struct Literal {
  Token token = Token::kEnd;
  // The word is skipped and yields no token: spaces such as \quad.
  bool skip = false;
};
using LiteralTable = std::map<std::string, Literal, std::less<>>;

// Every command and symbol that always means the same token. A word that appears twice in the
// grammar means its first token.
const LiteralTable& Literals();

// Commands that form one token (kAccent) together with their argument in braces: \bar, \text,
// \mathbb, ...
const std::vector<std::string>& AccentCommands();

}  // namespace taopd::grading::latex
