// Splits an answer in LaTeX into tokens. At each place the longest known command or symbol wins, as
// in the grammar of latex2sympy2_extended 1.11 (the parser that math-verify uses). A character that
// this grammar does not know makes the whole answer unreadable, there and here.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace taopd::grading::latex {

enum class Token {
  kEnd,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMod,
  kCaret,
  kUnderscore,
  kComma,
  kSemicolon,
  kColon,
  kBang,
  kLeftParen,
  kRightParen,
  kLeftParenVisual,
  kRightParenVisual,
  kLeftGroup,
  kRightGroup,
  kLeftBrace,
  kRightBrace,
  kLeftBraceVisual,
  kRightBraceVisual,
  kLeftBraceCommand,
  kRightBraceCommand,
  kLeftBracket,
  kRightBracket,
  kLeftBrack,
  kRightBrack,
  kBar,
  kLeftVert,
  kRightVert,
  kVert,
  kNorm,
  kLeftFloor,
  kRightFloor,
  kLeftCeil,
  kRightCeil,
  kBoxed,
  kFrac,
  kBinom,
  kChoose,
  kSqrt,
  kFunction,
  kMultiFunction,
  kGamma,
  kOperatorName,
  kBigOperator,
  kLimit,
  kTo,
  kMatrixBegin,
  kMatrixEnd,
  kDetBegin,
  kDetEnd,
  kAmpersand,
  kRowEnd,
  kEquals,
  kEquivalent,
  kApprox,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kUnequal,
  kIn,
  kNotIn,
  kUnion,
  kIntersection,
  kSetMinus,
  kPlusMinus,
  kEmptySet,
  kNamedSet,
  kSubset,
  kSuperset,
  kNumber,
  kPercentNumber,
  kScientific,
  kLetter,
  kEuler,
  kCapitalE,
  kGreek,
  kOtherSymbol,
  kAccent,
  kDifferential,
  kInfinity,
  kPartial,
  kTranspose,
  kDegree,
  // A word that the grammar reserves: gcd, rank, matrix, ...
  kName,
};

struct LexedToken {
  Token token = Token::kEnd;
  // A view into the source. It includes the spaces at its end.
  std::string_view text;
};

// Answers with more tokens are refused.
inline constexpr size_t kMaxTokens = 4000;

// Returns the tokens, ending with kEnd; they are views into `text`. Returns nullopt if no token
// starts with some character of the text, or if there are more than kMaxTokens.
std::optional<std::vector<LexedToken>> Tokenize(std::string_view text);

}  // namespace taopd::grading::latex
