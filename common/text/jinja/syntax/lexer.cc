#include "common/text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/text/jinja/values/python_text.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 128;
}

// Writes line ends as "\n" and drops the last one.
std::string NormalizeLines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const LexerOptions& options)
      : source_(NormalizeLines(source)), rest_(source_), options_(options) {}

  std::vector<Token> Run() {
    while (!rest_.empty()) LexData();
    Add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), at_}); }

  // Advances, counting lines and columns.
  void Skip(size_t size_bytes) {
    for (const char c : rest_.substr(0, size_bytes)) {
      if (c == '\n') {
        ++at_.line;
        at_.column = 1;
      } else if ((static_cast<uint8_t>(c) & 0xC0) != 0x80) {
        ++at_.column;
      }
    }
    rest_.remove_prefix(size_bytes);
  }
  void SkipSpace() { Skip(rest_.size() - StripLeft(rest_).size()); }

  // Reads the text up to the next tag, and the tag.
  void LexData() {
    size_t begin = 0;
    for (;; ++begin) {
      begin = rest_.find('{', begin);
      if (begin == std::string_view::npos || begin + 1 >= rest_.size()) {
        AddData(rest_);
        Skip(rest_.size());
        return;
      }
      if (const char c = rest_[begin + 1]; c == '{' || c == '%' || c == '#') break;
    }
    const char kind = rest_[begin + 1];
    const char sign = begin + 2 < rest_.size() ? rest_[begin + 2] : ' ';
    std::string_view data = rest_.substr(0, begin);
    if (sign == '-') {
      data = StripRight(data);
    } else if (sign != '+' && options_.lstrip_blocks && kind != '{') {
      data = StripLine(data);
    }
    AddData(data);
    Skip(begin);
    const Position tag = at_;
    Skip(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') {
      LexComment(tag);
    } else if (kind == '%' && LexRaw(tag)) {
    } else {
      tokens_.push_back(
          {kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "", tag});
      LexTag(kind == '{', tag);
    }
  }

  void AddData(std::string_view data) {
    if (!data.empty()) Add(TokenType::kData, std::string(data));
  }

  // Removes white space after the last newline if the tag that follows is the first on its line.
  std::string_view StripLine(std::string_view data) const {
    const size_t newline = data.rfind('\n');
    if (newline == std::string_view::npos && !is_line_start_) return data;
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return StripLeft(data.substr(line)).empty() ? data.substr(0, line) : data;
  }

  // Skips the end of a tag if it is here ("%}", "-%}" or "+%}"), with the white space that it
  // removes.
  bool SkipTagEnd(std::string_view end, bool trims_newline) {
    if (rest_.starts_with("-") && rest_.substr(1).starts_with(end)) {
      const size_t before = rest_.size();
      const size_t size_bytes = 1 + end.size();
      const size_t after = StripLeft(rest_.substr(size_bytes)).size();
      const std::string_view swallowed = rest_.substr(0, before - after);
      is_line_start_ = swallowed.ends_with('\n');
      Skip(swallowed.size());
      return true;
    }
    if (trims_newline && rest_.starts_with("+") && rest_.substr(1).starts_with(end)) {
      is_line_start_ = false;
      Skip(1 + end.size());
      return true;
    }
    if (!rest_.starts_with(end)) return false;
    Skip(end.size());
    is_line_start_ = trims_newline && options_.trim_blocks && rest_.starts_with('\n');
    if (is_line_start_) Skip(1);
    return true;
  }

  void LexComment(Position begin) {
    const size_t end = rest_.find("#}");
    if (end == std::string_view::npos) FailAt(begin, "missing end of comment tag");
    const bool has_sign = end > 0 && (rest_[end - 1] == '-' || rest_[end - 1] == '+');
    Skip(has_sign ? end - 1 : end);
    SkipTagEnd("#}", /*trims_newline=*/true);
  }

  // Reads a raw block after "{%", if there is one.
  bool LexRaw(Position begin) {
    const std::string_view tag = StripLeft(rest_);
    if (!tag.starts_with("raw")) return false;
    const std::string_view after = StripLeft(tag.substr(3));
    if (!after.starts_with("%}") && !after.starts_with("-%}")) return false;
    Skip(rest_.size() - after.size());
    SkipTagEnd("%}", /*trims_newline=*/false);
    for (size_t at = 0; (at = rest_.find("{%", at)) != std::string_view::npos; ++at) {
      std::string_view end = rest_.substr(at + 2);
      const char sign = end.empty() ? ' ' : end[0];
      if (sign == '-' || sign == '+') end.remove_prefix(1);
      end = StripLeft(end);
      if (!end.starts_with("endraw")) continue;
      end = StripLeft(end.substr(6));
      if (!end.starts_with("%}") && !end.starts_with("-%}") && !end.starts_with("+%}")) continue;
      std::string_view data = rest_.substr(0, at);
      if (sign == '-') data = StripRight(data);
      if (sign != '-' && sign != '+' && options_.lstrip_blocks) data = StripLine(data);
      AddData(data);
      Skip(rest_.size() - end.size());
      SkipTagEnd("%}", /*trims_newline=*/true);
      return true;
    }
    FailAt(begin, "missing end of raw directive");
  }

  // Reads the tokens of a tag up to its end. Inside brackets, "}}" is two tokens.
  void LexTag(bool is_variable, Position begin) {
    std::vector<char> open;
    for (;;) {
      SkipSpace();
      if (rest_.empty()) FailAt(begin, is_variable ? "missing }}" : "missing %}");
      const Position end = at_;
      if (open.empty() && SkipTagEnd(is_variable ? "}}" : "%}", !is_variable)) {
        tokens_.push_back({is_variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "", end});
        return;
      }
      const char c = rest_[0];
      if (IsDigit(c)) {
        LexNumber();
      } else if (IsNameStart(c)) {
        size_t size = 1;
        while (size < rest_.size() && (IsNameStart(rest_[size]) || IsDigit(rest_[size]))) ++size;
        Take(TokenType::kName, size);
      } else if (c == '\'' || c == '"') {
        LexText(c);
      } else {
        LexOperator(&open);
      }
    }
  }

  void Take(TokenType type, size_t size) {
    Add(type, std::string(rest_.substr(0, size)));
    Skip(size);
  }

  void LexOperator(std::vector<char>* open) {
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](std::string_view text) { return rest_.starts_with(text); });
    if (found == kOperators.end()) {
      FailAt(at_, "unexpected character ", QuoteCharacter());
    }
    const char c = rest_[0];
    if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) FailAt(at_, "unexpected '", c, "'");
      if (open->back() != c) FailAt(at_, "unexpected '", c, "', expected '", open->back(), "'");
      open->pop_back();
    }
    Take(TokenType::kOperator, found->size());
  }

  std::string QuoteCharacter() const {
    return "'" + std::string(rest_.substr(0, ByteOffset(rest_, 1))) + "'";
  }

  // Returns the size of digits with single underscores between them.
  static size_t DigitsSize(std::string_view text, bool (*is_digit)(char)) {
    size_t size = 0;
    while (size < text.size() &&
           (is_digit(text[size]) || (size > 0 && text[size] == '_' && size + 1 < text.size() &&
                                     is_digit(text[size + 1])))) {
      ++size;
    }
    return size;
  }

  void LexNumber() {
    const bool follows_dot = !tokens_.empty() && tokens_.back().text == "." &&
                             tokens_.back().type == TokenType::kOperator;
    if (rest_.size() > 2 && rest_[0] == '0' &&
        std::string_view("xXbBoO").find(rest_[1]) != std::string_view::npos) {
      const size_t digits = DigitsSize(rest_.substr(2), [](char c) {
        return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      });
      if (digits > 0) return Take(TokenType::kInteger, 2 + digits);
    }
    size_t size = DigitsSize(rest_, IsDigit);
    bool is_float = false;
    if (!follows_dot) {
      if (size + 1 < rest_.size() && rest_[size] == '.' && IsDigit(rest_[size + 1])) {
        is_float = true;
        size += 1 + DigitsSize(rest_.substr(size + 1), IsDigit);
      }
      if (size < rest_.size() && (rest_[size] == 'e' || rest_[size] == 'E')) {
        const size_t sign =
            size + 1 < rest_.size() && (rest_[size + 1] == '+' || rest_[size + 1] == '-') ? 1 : 0;
        const size_t digits =
            DigitsSize(rest_.substr(std::min(size + 1 + sign, rest_.size())), IsDigit);
        if (digits > 0) {
          is_float = true;
          size += 1 + sign + digits;
        }
      }
    }
    Take(is_float ? TokenType::kFloat : TokenType::kInteger, size);
  }

  void LexText(char quote) {
    std::string text;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == quote) {
        Add(TokenType::kText, std::move(text));
        Skip(i + 1);
        return;
      }
      if (rest_[i] == '\\' && i + 1 < rest_.size()) {
        i = AppendEscape(i + 1, &text);
      } else {
        text += rest_[i];
      }
    }
    FailAt(at_, "missing end of string");
  }

  // Appends one of Python's escapes; an unknown one keeps its backslash. Returns the position of
  // its last byte.
  size_t AppendEscape(size_t i, std::string* text) const {
    static constexpr std::string_view kLetters = "nrtabfv\\'\"";
    static constexpr std::string_view kMeanings = "\n\r\t\a\b\f\v\\'\"";
    const char c = rest_[i];
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      *text += kMeanings[at];
      return i;
    }
    if (c == '\n') return i;
    size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int base = 16;
    size_t begin = i + 1;
    if (c >= '0' && c <= '7') {
      base = 8;
      begin = i;
      const std::string_view most = rest_.substr(begin, 3);
      num_digits = std::min(most.find_first_not_of("01234567"), most.size());
    }
    if (num_digits == 0) {
      *text += '\\';
      *text += c;
      return i;
    }
    const std::string_view digits = rest_.substr(begin, num_digits);
    const char* const end = digits.data() + digits.size();
    uint32_t code_point = 0;
    const auto read = std::from_chars(digits.data(), end, code_point, base);
    if (digits.size() < num_digits || read.ptr != end) {
      FailAt(at_, "string with a truncated \\", c, " escape");
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
      FailAt(at_, "string with an escape that is not a character");
    }
    AppendUtf8(static_cast<char32_t>(code_point), text);
    return begin + num_digits - 1;
  }

  const std::string source_;
  std::string_view rest_;
  const LexerOptions options_;
  Position at_ = {1, 1};
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source, const LexerOptions& options) {
  return Lexer(source, options).Run();
}

}  // namespace taopd::jinja
