#include "trainer/grading/latex/parser.h"

#include "trainer/grading/latex/grammar.h"
#include "trainer/grading/latex/symbol_names.h"

namespace taopd::grading::latex {
namespace {

constexpr size_t kMaxLatexBytes = 20000;

}  // namespace

ExprPtr Parser::Answer(std::string_view source) {
  if (ExprPtr e = ElementsRelation(); e && At(Token::kEnd)) return e;
  position_ = 0;
  if (std::vector<std::vector<ExprPtr>> groups;
      SemicolonElements(true, &groups) && At(Token::kEnd)) {
    if (ExprPtr number = CommaNumber(source)) return number;
    return ElementsToSet(groups);
  }
  position_ = 0;
  if (ExprPtr e = SetRelation(); e && At(Token::kEnd)) return e;
  return nullptr;
}

ExprPtr Parse(std::string_view latex) {
  if (latex.size() > kMaxLatexBytes) return nullptr;
  const auto tokens = Tokenize(latex);
  if (!tokens) return nullptr;
  return Parser(*tokens, !SpeaksOfComplexNumbers(latex)).Answer(latex);
}

}  // namespace taopd::grading::latex
