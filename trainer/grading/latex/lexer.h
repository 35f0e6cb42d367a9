// Tokens of an answer in LaTeX: the longest known command or symbol at each place, as the grammar
// of latex2sympy2_extended 1.11 (the parser under math-verify) has them. What it does not know
// makes the whole answer unreadable, there and here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

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
  kName,  // a bare word that the grammar keeps for itself: gcd, rank, matrix, ...
};

struct LexedToken {
  Token token = Token::kEnd;
  std::string_view text;  // in the source, spaces at its end included
};

// Longer answers are refused.
inline constexpr size_t kMaxTokens = 4000;

// nullopt: a character that no token starts with, or too many tokens. The last token is kEnd.
// The views point into `text`.
std::optional<std::vector<LexedToken>> Tokenize(std::string_view text);

}  // namespace taopd
