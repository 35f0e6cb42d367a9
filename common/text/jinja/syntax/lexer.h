// A template's text as tokens, as jinja2's lexer cuts it: white-space control, trim_blocks and
// lstrip_blocks, comments and raw blocks are dealt with here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/jinja/error.h"

namespace taopd::jinja {

enum class TokenType : uint8_t {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kText,
  kInteger,
  kFloat,
  kOperator,  // text is the operator itself
  kEnd,       // of the template
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // of a kText: without quotes, escapes resolved
  Position position;
};

struct LexerOptions {
  bool trim_blocks = true;    // drop the newline after a block tag
  bool lstrip_blocks = true;  // drop the white space before a block tag that begins its line
};

// The last token is kEnd. Throws TemplateError. REQUIRES: source is valid UTF-8.
std::vector<Token> Tokenize(std::string_view source, const LexerOptions& options);

}  // namespace taopd::jinja
