// Parses templates into syntax trees. The grammar is jinja2's, without inheritance, imports and
// translations, which chat templates do not need and which are refused by name.
#pragma once

#include <string_view>

#include "common/text/jinja/syntax/lexer.h"
#include "common/text/jinja/syntax/syntax.h"

namespace taopd::jinja {

// Throws TemplateError. REQUIRES: source is valid UTF-8.
Syntax ParseTemplate(std::string_view source, const LexerOptions& options);

}  // namespace taopd::jinja
