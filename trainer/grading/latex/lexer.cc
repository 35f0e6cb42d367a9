#include "trainer/grading/latex/lexer.h"

#include <algorithm>

#include "trainer/grading/latex/vocabulary.h"
#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

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
