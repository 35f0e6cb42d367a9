#include "trainer/grading/latex/lexer.h"

#include <cctype>
#include <map>

namespace taopd {
namespace {

struct Literal {
  Token token;
  bool skip = false;
};

using LiteralTable = std::map<std::string, Literal, std::less<>>;

void AddWords(LiteralTable* table, Token token, std::string_view words, bool skip = false) {
  size_t begin = 0;
  while (begin < words.size()) {
    size_t end = words.find(' ', begin);
    if (end == std::string_view::npos) end = words.size();
    if (end > begin)
      table->emplace(std::string(words.substr(begin, end - begin)), Literal{token, skip});
    begin = end + 1;
  }
}

LiteralTable MakeLiterals() {
  LiteralTable t;
  AddWords(&t, Token::kEnd,
           "\\, \\thinspace \\: \\medspace \\; \\thickspace \\quad \\qquad \\! \\negthinspace "
           "\\negmedspace \\negthickspace \\$ \\vrule \\vcenter \\vbox \\vskip \\vspace \\hfil",
           true);
  AddWords(&t, Token::kAdd, "+ \u2214 \u2295 \u229E");
  AddWords(&t, Token::kSub, "- \u2212 \u2238");
  AddWords(&t, Token::kMul,
           "* \u00D7 \u22C5 \u22C4 \u22A1 \u2217 \u22C6 \u2218 \u2219 \u2297 \u22A0 \u22C8 \u22C9 "
           "\u22CA \\times \\cdot");
  AddWords(&t, Token::kDiv, "/ \u00F7 \u2215 \\over \\div");
  AddWords(&t, Token::kMod, "\\mod");
  AddWords(&t, Token::kLeftParen, "(");
  AddWords(&t, Token::kRightParen, ")");
  AddWords(&t, Token::kLeftParenVisual, "\\(");
  AddWords(&t, Token::kRightParenVisual, "\\)");
  AddWords(&t, Token::kLeftGroup, "\\lgroup");
  AddWords(&t, Token::kRightGroup, "\\rgroup");
  AddWords(&t, Token::kLeftBrace, "{");
  AddWords(&t, Token::kRightBrace, "}");
  AddWords(&t, Token::kLeftBraceVisual, "\\{");
  AddWords(&t, Token::kRightBraceVisual, "\\}");
  AddWords(&t, Token::kLeftBraceCommand, "\\lbrace");
  AddWords(&t, Token::kRightBraceCommand, "\\rbrace");
  AddWords(&t, Token::kLeftBracket, "[");
  AddWords(&t, Token::kRightBracket, "]");
  AddWords(&t, Token::kLeftBrack, "\\lbrack");
  AddWords(&t, Token::kRightBrack, "\\rbrack");
  AddWords(&t, Token::kBoxed, "\\boxed \\phantom");
  AddWords(&t, Token::kBar, "|");
  AddWords(&t, Token::kLeftVert, "\\lvert");
  AddWords(&t, Token::kRightVert, "\\rvert");
  AddWords(&t, Token::kVert, "\\vert");
  AddWords(&t, Token::kNorm, "\\|");
  AddWords(&t, Token::kLeftFloor, "\\lfloor \\llcorner");
  AddWords(&t, Token::kRightFloor, "\\rfloor \\lrcorner");
  AddWords(&t, Token::kLeftCeil, "\\lceil \\ulcorner");
  AddWords(&t, Token::kRightCeil, "\\rceil \\urcorner");
  AddWords(&t, Token::kLimit, "\\lim");
  AddWords(&t, Token::kTo, "\\to \\rightarrow \\Rightarrow \\longrightarrow \\Longrightarrow");
  AddWords(&t, Token::kBigOperator, "\\int \\sum \\prod");
  AddWords(&t, Token::kFunction,
           "\\log \\ln \\exp \\sin \\cos \\tan \\csc \\sec \\cot \\arcsin \\arccos \\arctan "
           "\\arccsc \\arcsec \\arccot \\sinh \\cosh \\tanh \\arsinh \\arcosh \\artanh \\arcsinh "
           "\\arccosh \\arctanh \\floor \\ceil \\det");
  AddWords(&t, Token::kGamma, "\\Gamma \\gamma");
  AddWords(&t, Token::kMultiFunction, "\\gcd \\lcm \\max \\min");
  AddWords(&t, Token::kName,
           "arsinh arcsinh arcosh arccosh artanh arctanh gcd lcm floor ceil eye zeros ones cols "
           "rows diag norm rank trace tr rref hstack vstack orth ortho orthogonal orthogonalize "
           "nullspace eig eigen diagonalize eigenvals eigenvalues eigenvects eigenvectors svd SVD "
           "matrix pmatrix bmatrix vmatrix");
  AddWords(&t, Token::kSqrt, "\\sqrt");
  AddWords(&t, Token::kFrac, "\\frac \\dfrac \\tfrac \\cfrac");
  AddWords(&t, Token::kBinom, "\\binom \\tbinom \\dbinom");
  AddWords(&t, Token::kChoose, "\\choose");
  AddWords(&t, Token::kOperatorName, "\\operatorname");
  AddWords(&t, Token::kMatrixBegin, "\\begin{matrix} \\begin{pmatrix} \\begin{bmatrix}");
  AddWords(&t, Token::kMatrixEnd, "\\end{matrix} \\end{pmatrix} \\end{bmatrix} \\end{array}");
  AddWords(&t, Token::kDetBegin, "\\begin{vmatrix}");
  AddWords(&t, Token::kDetEnd, "\\end{vmatrix}");
  AddWords(&t, Token::kAmpersand, "&");
  AddWords(&t, Token::kRowEnd, "\\\\");
  AddWords(&t, Token::kUnderscore, "_");
  AddWords(&t, Token::kCaret, "^");
  AddWords(&t, Token::kColon, ":");
  AddWords(&t, Token::kSemicolon, ";");
  AddWords(&t, Token::kComma, ",");
  AddWords(&t, Token::kBang, "!");
  AddWords(&t, Token::kEuler, "e \\exponentialE");
  AddWords(&t, Token::kCapitalE, "E");
  AddWords(&t, Token::kIn, "\\in");
  AddWords(&t, Token::kEquals,
           "= \u2261 \u2263 \u225F \u224E \u224F \u2250 \u2251 \u2252 \u2253 \u2254 \u2255 \u2256 "
           "\u2257");
  AddWords(&t, Token::kEquivalent, "== \\equiv");
  AddWords(&t, Token::kApprox, "~= \u2248 \u224A \u224B \u2243 \u2245 \\approx");
  AddWords(&t, Token::kLess, "< \u226A \u227A \u22D6 \\lt");
  AddWords(&t, Token::kLessEqual, "\\leq \\le \\leqslant \u2264 \u2266 \u2272 \u227E <=");
  AddWords(&t, Token::kGreater, "> \u226B \u227B \u22D7 \\gt");
  AddWords(&t, Token::kGreaterEqual, "\\geq \\ge \\geqslant \u2265 \u2267 \u2273 \u227F >=");
  AddWords(&t, Token::kUnequal,
           "!= !== \\ne \\neq \\not\\equiv \u2260 \u2241 \u2244 \u2247 \u2249 \u2262");
  AddWords(&t, Token::kUnion, "\\cup \u222A");
  AddWords(&t, Token::kIntersection, "\\cap \u2229");
  AddWords(&t, Token::kSetMinus, "\\setminus \u2216");
  AddWords(&t, Token::kPlusMinus, "\\pm \u00B1 \u2213 \\mp");
  AddWords(&t, Token::kEmptySet, "\\emptyset \u2205 \\{\\} \\lbrace\\rbrace");
  AddWords(&t, Token::kSuperset, "\\supseteq \u2287");
  AddWords(&t, Token::kSubset, "\\subseteq \u2286");
  AddWords(&t, Token::kNotIn, "\\notin \u2209");
  AddWords(&t, Token::kNamedSet,
           "\\mathbb{N} \u2115 \\mathbb{Z} \u2124 \\mathbb{Q} \u211A \\mathbb{R} \u211D "
           "\\mathbb{C} \u2102 \\mathbb{P} \u2119");
  AddWords(&t, Token::kInfinity, "\\infty \\infty% \\infty\\%");
  AddWords(&t, Token::kPartial, "\\partial");
  AddWords(&t, Token::kTranspose, "^T ^{T} ^{\\top} '");
  AddWords(&t, Token::kDegree,
           "^\\circ ^\\degree ^\\circle ^\u00B0 ^{\\circ} ^{\\degree} ^{\\circle} ^{\u00B0}");
  AddWords(&t, Token::kGreek,
           "\\alpha \u03B1 \\beta \u03B2 \u03B3 \u0393 \\delta \u03B4 \\Delta \u0394 \\epsilon "
           "\u03B5 \\varepsilon \u03F5 \\zeta \u03B6 \\eta \u03B7 \\theta \u03B8 \\Theta \u0398 "
           "\\vartheta \u03D1 \\iota \u03B9 \\kappa \u03BA \\lambda \u03BB \\Lambda \u039B \\mu "
           "\u03BC \\nu \u03BD \\xi \u03BE \\Xi \u039E \\omicron \u03BF \\pi \u03C0 \\Pi \u03A0 "
           "\\varpi \u03D6 \\rho \u03C1 \\varrho \u03F1 \\sigma \u03C3 \\Sigma \u03A3 \\varsigma "
           "\u03C2 \\tau \u03C4 \\upsilon \u03C5 \\Upsilon \u03A5 \\phi \u03C6 \\Phi \u03A6 "
           "\\varphi \u03D5 \\chi \u03C7 \\psi \u03C8 \\Psi \u03A8 \\omega \u03C9 \\Omega \u03A9");
  AddWords(&t, Token::kOtherSymbol,
           "\\Bbbk \\wp \\nabla \\bigstar \\angle \\nexists \\diagdown \\measuredangle \\eth "
           "\u2135 \u2136 \u2137 \u2138 \\diagup \\sphericalangle \\clubsuit \\varnothing "
           "\\Diamond \\complement \\diamondsuit \\imath \\Finv \\triangledown \\heartsuit \\jmath "
           "\\Game \\triangle \\spadesuit \\ell \\hbar \\vartriangle \\hslash \\blacklozenge "
           "\\lozenge \\blacksquare \\mho \\blacktriangle \\sharp \\prime \\Im \\flat \\square "
           "\\backprime \\Re \\natural \\surd \\circledS");
  return t;
}

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

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLatexSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool IsAlpha(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {
    static const LiteralTable literals = MakeLiterals();
    literals_ = &literals;
    for (const auto& [word, literal] : literals) longest_ = std::max(longest_, word.size());
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
  // The first rule wins among equally long ones.
  void Offer(Token token, size_t size, bool skip = false) {
    if (size > best_size_) {
      best_ = {token, skip};
      best_size_ = size;
    }
  }

  void MatchLiteral(size_t i) {
    for (size_t size = std::min(longest_, text_.size() - i); size > 0; --size) {
      const auto found = literals_->find(text_.substr(i, size));
      if (found == literals_->end()) continue;
      const Token token = found->second.token;
      const bool takes_space = token == Token::kGreek || token == Token::kOtherSymbol;
      const bool space = takes_space && i + size < text_.size() && text_[i + size] == ' ';
      Offer(token, size + (space ? 1 : 0), found->second.skip);
      return;
    }
  }

  void MatchNumber(size_t i) {
    size_t end = i;
    while (end < text_.size() && IsDigit(text_[end])) ++end;
    if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
      ++end;
      while (end < text_.size() && IsDigit(text_[end])) ++end;
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
      while (digits < text_.size() && IsDigit(text_[digits])) ++digits;
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
      if (end < text_.size() && IsAlpha(text_[end])) {
        Offer(Token::kDifferential, end + 1 - i);
      } else if (end + 1 < text_.size() && text_[end] == '\\' && IsAlpha(text_[end + 1])) {
        size_t stop = end + 1;
        while (stop < text_.size() && IsAlpha(text_[stop])) ++stop;
        Offer(Token::kDifferential, stop - i);
      }
    }
    if (IsAlpha(text_[i]) && text_[i] != 'e' && text_[i] != 'E') Offer(Token::kLetter, 1);
  }

  const std::string_view text_;
  const LiteralTable* literals_ = nullptr;
  size_t longest_ = 0;
  Literal best_{};
  size_t best_size_ = 0;
};

}  // namespace

std::optional<std::vector<LexedToken>> Tokenize(std::string_view text) { return Lexer(text).Run(); }

}  // namespace taopd
