#include "trainer/grading/latex/lexer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

// ---- The words of the grammar of latex2sympy2_extended 1.11 ----

struct Literal {
  Token token = Token::kEnd;
  // The word is skipped and yields no token: spaces such as \quad.
  bool skip = false;
};
using LiteralTable = std::map<std::string, Literal, std::less<>>;

struct Words {
  Token token;
  // Separated by spaces.
  std::string_view words;
};

// Commands that are skipped.
constexpr std::string_view kSkipped =
    "\\, \\thinspace \\: \\medspace \\; \\thickspace \\quad \\qquad \\! \\negthinspace "
    "\\negmedspace \\negthickspace \\$ \\vrule \\vcenter \\vbox \\vskip \\vspace \\hfil";

constexpr Words kVocabulary[] = {
    {Token::kAdd, "+ \u2214 \u2295 \u229E"},
    {Token::kSub, "- \u2212 \u2238"},
    {Token::kMul,
     "* \u00D7 \u22C5 \u22C4 \u22A1 \u2217 \u22C6 \u2218 \u2219 \u2297 \u22A0 \u22C8 \u22C9 "
     "\u22CA \\times \\cdot"},
    {Token::kDiv, "/ \u00F7 \u2215 \\over \\div"},
    {Token::kMod, "\\mod"},
    {Token::kLeftParen, "("},
    {Token::kRightParen, ")"},
    {Token::kLeftParenVisual, "\\("},
    {Token::kRightParenVisual, "\\)"},
    {Token::kLeftGroup, "\\lgroup"},
    {Token::kRightGroup, "\\rgroup"},
    {Token::kLeftBrace, "{"},
    {Token::kRightBrace, "}"},
    {Token::kLeftBraceVisual, "\\{"},
    {Token::kRightBraceVisual, "\\}"},
    {Token::kLeftBraceCommand, "\\lbrace"},
    {Token::kRightBraceCommand, "\\rbrace"},
    {Token::kLeftBracket, "["},
    {Token::kRightBracket, "]"},
    {Token::kLeftBrack, "\\lbrack"},
    {Token::kRightBrack, "\\rbrack"},
    {Token::kBoxed, "\\boxed \\phantom"},
    {Token::kBar, "|"},
    {Token::kLeftVert, "\\lvert"},
    {Token::kRightVert, "\\rvert"},
    {Token::kVert, "\\vert"},
    {Token::kNorm, "\\|"},
    {Token::kLeftFloor, "\\lfloor \\llcorner"},
    {Token::kRightFloor, "\\rfloor \\lrcorner"},
    {Token::kLeftCeil, "\\lceil \\ulcorner"},
    {Token::kRightCeil, "\\rceil \\urcorner"},
    {Token::kLimit, "\\lim"},
    {Token::kTo, "\\to \\rightarrow \\Rightarrow \\longrightarrow \\Longrightarrow"},
    {Token::kBigOperator, "\\int \\sum \\prod"},
    {Token::kFunction,
     "\\log \\ln \\exp \\sin \\cos \\tan \\csc \\sec \\cot \\arcsin \\arccos \\arctan "
     "\\arccsc \\arcsec \\arccot \\sinh \\cosh \\tanh \\arsinh \\arcosh \\artanh \\arcsinh "
     "\\arccosh \\arctanh \\floor \\ceil \\det"},
    {Token::kGamma, "\\Gamma \\gamma"},
    {Token::kMultiFunction, "\\gcd \\lcm \\max \\min"},
    {Token::kName,
     "arsinh arcsinh arcosh arccosh artanh arctanh gcd lcm floor ceil eye zeros ones cols "
     "rows diag norm rank trace tr rref hstack vstack orth ortho orthogonal orthogonalize "
     "nullspace eig eigen diagonalize eigenvals eigenvalues eigenvects eigenvectors svd SVD "
     "matrix pmatrix bmatrix vmatrix"},
    {Token::kSqrt, "\\sqrt"},
    {Token::kFrac, "\\frac \\dfrac \\tfrac \\cfrac"},
    {Token::kBinom, "\\binom \\tbinom \\dbinom"},
    {Token::kChoose, "\\choose"},
    {Token::kOperatorName, "\\operatorname"},
    {Token::kMatrixBegin, "\\begin{matrix} \\begin{pmatrix} \\begin{bmatrix}"},
    {Token::kMatrixEnd, "\\end{matrix} \\end{pmatrix} \\end{bmatrix} \\end{array}"},
    {Token::kDetBegin, "\\begin{vmatrix}"},
    {Token::kDetEnd, "\\end{vmatrix}"},
    {Token::kAmpersand, "&"},
    {Token::kRowEnd, "\\\\"},
    {Token::kUnderscore, "_"},
    {Token::kCaret, "^"},
    {Token::kColon, ":"},
    {Token::kSemicolon, ";"},
    {Token::kComma, ","},
    {Token::kBang, "!"},
    {Token::kEuler, "e \\exponentialE"},
    {Token::kCapitalE, "E"},
    {Token::kIn, "\\in"},
    {Token::kEquals,
     "= \u2261 \u2263 \u225F \u224E \u224F \u2250 \u2251 \u2252 \u2253 \u2254 \u2255 \u2256 "
     "\u2257"},
    {Token::kEquivalent, "== \\equiv"},
    {Token::kApprox, "~= \u2248 \u224A \u224B \u2243 \u2245 \\approx"},
    {Token::kLess, "< \u226A \u227A \u22D6 \\lt"},
    {Token::kLessEqual, "\\leq \\le \\leqslant \u2264 \u2266 \u2272 \u227E <="},
    {Token::kGreater, "> \u226B \u227B \u22D7 \\gt"},
    {Token::kGreaterEqual, "\\geq \\ge \\geqslant \u2265 \u2267 \u2273 \u227F >="},
    {Token::kUnequal, "!= !== \\ne \\neq \\not\\equiv \u2260 \u2241 \u2244 \u2247 \u2249 \u2262"},
    {Token::kUnion, "\\cup \u222A"},
    {Token::kIntersection, "\\cap \u2229"},
    {Token::kSetMinus, "\\setminus \u2216"},
    {Token::kPlusMinus, "\\pm \u00B1 \u2213 \\mp"},
    {Token::kEmptySet, "\\emptyset \u2205 \\{\\} \\lbrace\\rbrace"},
    {Token::kSuperset, "\\supseteq \u2287"},
    {Token::kSubset, "\\subseteq \u2286"},
    {Token::kNotIn, "\\notin \u2209"},
    {Token::kNamedSet,
     "\\mathbb{N} \u2115 \\mathbb{Z} \u2124 \\mathbb{Q} \u211A \\mathbb{R} \u211D "
     "\\mathbb{C} \u2102 \\mathbb{P} \u2119"},
    {Token::kInfinity, "\\infty \\infty% \\infty\\%"},
    {Token::kPartial, "\\partial"},
    {Token::kTranspose, "^T ^{T} ^{\\top} '"},
    {Token::kDegree,
     "^\\circ ^\\degree ^\\circle ^\u00B0 ^{\\circ} ^{\\degree} ^{\\circle} ^{\u00B0}"},
    {Token::kGreek,
     "\\alpha \u03B1 \\beta \u03B2 \u03B3 \u0393 \\delta \u03B4 \\Delta \u0394 \\epsilon "
     "\u03B5 \\varepsilon \u03F5 \\zeta \u03B6 \\eta \u03B7 \\theta \u03B8 \\Theta \u0398 "
     "\\vartheta \u03D1 \\iota \u03B9 \\kappa \u03BA \\lambda \u03BB \\Lambda \u039B \\mu "
     "\u03BC \\nu \u03BD \\xi \u03BE \\Xi \u039E \\omicron \u03BF \\pi \u03C0 \\Pi \u03A0 "
     "\\varpi \u03D6 \\rho \u03C1 \\varrho \u03F1 \\sigma \u03C3 \\Sigma \u03A3 \\varsigma "
     "\u03C2 \\tau \u03C4 \\upsilon \u03C5 \\Upsilon \u03A5 \\phi \u03C6 \\Phi \u03A6 "
     "\\varphi \u03D5 \\chi \u03C7 \\psi \u03C8 \\Psi \u03A8 \\omega \u03C9 \\Omega \u03A9"},
    {Token::kOtherSymbol,
     "\\Bbbk \\wp \\nabla \\bigstar \\angle \\nexists \\diagdown \\measuredangle \\eth "
     "\u2135 \u2136 \u2137 \u2138 \\diagup \\sphericalangle \\clubsuit \\varnothing "
     "\\Diamond \\complement \\diamondsuit \\imath \\Finv \\triangledown \\heartsuit \\jmath "
     "\\Game \\triangle \\spadesuit \\ell \\hbar \\vartriangle \\hslash \\blacklozenge "
     "\\lozenge \\blacksquare \\mho \\blacktriangle \\sharp \\prime \\Im \\flat \\square "
     "\\backprime \\Re \\natural \\surd \\circledS"},
};

void AddWords(std::string_view words, Literal literal, LiteralTable* table) {
  size_t begin = 0;
  while (begin < words.size()) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    table->emplace(std::string(words.substr(begin, end - begin)), literal);
    begin = end + 1;
  }
}

// Every command and symbol that always means the same token. A word that appears twice in the
// grammar means its first token.
const LiteralTable& Literals() {
  static const LiteralTable table = [] {
    LiteralTable made;
    AddWords(kSkipped, {Token::kEnd, /*skip=*/true}, &made);
    for (const Words& row : kVocabulary) AddWords(row.words, {row.token, /*skip=*/false}, &made);
    return made;
  }();
  return table;
}

// Commands that form one token (kAccent) together with their argument in braces: \bar, \text,
// \mathbb, ...
const std::vector<std::string>& AccentCommands() {
  static const std::vector<std::string> commands = {
      "\\acute",      "\\bar",        "\\overline", "\\breve",          "\\check",
      "\\widecheck",  "\\dot",        "\\ddot",     "\\grave",          "\\hat",
      "\\tilde",      "\\widetilde",  "\\vec",      "\\overrightarrow", "\\bm",
      "\\boldsymbol", "\\text",       "\\textit",   "\\textbf",         "\\textnormal",
      "\\mathbb",     "\\mathbin",    "\\mathbf",   "\\mathcal",        "\\mathfrak",
      "\\mathit",     "\\mathnormal", "\\mathop",   "\\mathord",        "\\mathring",
      "\\mathrm",     "\\mathscr",    "\\mathsf",   "\\mathtt",         "\\mbox"};
  return commands;
}

bool IsLatexSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {
    for (const auto& [word, literal] : literals_) longest_ = std::max(longest_, word.size());
  }

  std::optional<std::vector<LexedToken>> Run() {
    std::vector<LexedToken> tokens;
    size_t i = 0;
    while (i < text_.size()) {
      if (IsLatexSpace(text_[i])) {
        ++i;
        continue;
      }
      best_ = {};
      best_size_ = 0;
      MatchLiteral(i);
      MatchNumber(i);
      MatchAccent(i);
      MatchArray(i);
      MatchLetter(i);
      if (best_size_ == 0) return std::nullopt;
      if (!best_.skip) tokens.push_back({best_.token, text_.substr(i, best_size_)});
      if (tokens.size() > kMaxTokens) return std::nullopt;
      i += best_size_;
    }
    tokens.push_back({Token::kEnd, {}});
    return tokens;
  }

 private:
  // Keeps the longest token, and the first of several equally long ones.
  void Offer(Token token, size_t size, bool skip = false) {
    if (size > best_size_) {
      best_ = {token, skip};
      best_size_ = size;
    }
  }

  void MatchLiteral(size_t i) {
    for (size_t size = std::min(longest_, text_.size() - i); size > 0; --size) {
      const auto found = literals_.find(text_.substr(i, size));
      if (found == literals_.end()) continue;
      const Token token = found->second.token;
      const bool takes_space = token == Token::kGreek || token == Token::kOtherSymbol;
      const bool space = takes_space && i + size < text_.size() && text_[i + size] == ' ';
      Offer(token, size + (space ? 1 : 0), found->second.skip);
      return;
    }
  }

  void MatchNumber(size_t i) {
    size_t end = SkipDigits(text_, i);
    if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
      end = SkipDigits(text_, end + 1);
    }
    if (end == i) return;
    Offer(Token::kNumber, end - i);
    size_t percent = end;
    if (percent < text_.size() && IsLatexSpace(text_[percent])) ++percent;
    if (percent < text_.size() && text_[percent] == '\\') ++percent;
    if (percent < text_.size() && text_[percent] == '%')
      Offer(Token::kPercentNumber, percent + 1 - i);
    if (end < text_.size() && text_[end] == 'E') {
      size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '-' || text_[digits] == '+')) ++digits;
      const size_t first = digits;
      digits = SkipDigits(text_, first);
      if (digits > first) Offer(Token::kScientific, digits - i);
    }
  }

  void MatchAccent(size_t i) {
    if (text_[i] != '\\') return;
    for (const std::string& command : AccentCommands()) {
      if (text_.substr(i, command.size()) != command) continue;
      size_t open = i + command.size();
      if (open < text_.size() && IsLatexSpace(text_[open])) ++open;
      if (open >= text_.size() || text_[open] != '{') continue;
      for (size_t end = open + 1; end < text_.size(); ++end) {
        if (text_[end] == '\\' && end + 1 < text_.size() && text_[end + 1] == '}') {
          ++end;
        } else if (text_[end] == '}') {
          Offer(Token::kAccent, end + 1 - i);
          break;
        }
      }
    }
  }

  void MatchArray(size_t i) {
    constexpr std::string_view kBegin = "\\begin{array}{";
    if (text_.substr(i, kBegin.size()) != kBegin) return;
    size_t end = i + kBegin.size();
    while (end < text_.size() && (text_[end] == 'c' || text_[end] == 'l' || text_[end] == 'r'))
      ++end;
    if (end < text_.size() && text_[end] == '}') Offer(Token::kMatrixBegin, end + 1 - i);
  }

  void MatchLetter(size_t i) {
    if (text_[i] == 'd') {
      size_t end = i + 1;
      while (end < text_.size() && IsLatexSpace(text_[end])) ++end;
      if (end < text_.size() && IsLetter(text_[end])) {
        Offer(Token::kDifferential, end + 1 - i);
      } else if (end + 1 < text_.size() && text_[end] == '\\' && IsLetter(text_[end + 1])) {
        size_t stop = end + 1;
        while (stop < text_.size() && IsLetter(text_[stop])) ++stop;
        Offer(Token::kDifferential, stop - i);
      }
    }
    if (IsLetter(text_[i]) && text_[i] != 'e' && text_[i] != 'E') Offer(Token::kLetter, 1);
  }

  const std::string_view text_;
  const LiteralTable& literals_ = Literals();
  size_t longest_ = 0;
  Literal best_{};
  size_t best_size_ = 0;
};

}  // namespace

std::optional<std::vector<LexedToken>> Tokenize(std::string_view text) { return Lexer(text).Run(); }

}  // namespace taopd::grading::latex
