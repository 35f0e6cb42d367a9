// Splits a template's text into tokens, as jinja2's lexer does. It also handles white-space
// control, trim_blocks and lstrip_blocks, comments and raw blocks.
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
  kOperator,  // the text is the operator itself
  kEnd,       // the end of the template
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // for a kText: without quotes, and with its escapes resolved
  Position position;
};

struct LexerOptions {
  bool trim_blocks = true;    // drop the newline after a block tag
  bool lstrip_blocks = true;  // drop the white space before a block tag that starts its line
};

// Returns the tokens. The last is kEnd. Throws TemplateError. REQUIRES: source is valid
// UTF-8.
std::vector<Token> Tokenize(std::string_view source, const LexerOptions& options);

}  // namespace taopd::jinja
