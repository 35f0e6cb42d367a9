// Jinja templates, rendered exactly as Python's jinja2 3.1.6 does in the set-up that transformers
// uses for chat templates: immutable sandbox, trim_blocks, lstrip_blocks, loop controls, tojson
// without HTML escapes, raise_exception, strftime_now, {% generation %}.
//
// Not there: inheritance, imports, translations, and the filters for HTML pages; each is refused by
// its name. Integers have 64 bits (beyond: an error). A template can neither hang nor exhaust
// memory: limits.h.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/text/jinja/syntax/lexer.h"

namespace taopd::jinja {

struct Syntax;

struct RenderOptions {
  // What strftime_now shows.
  absl::Time now = absl::Now();
  absl::TimeZone time_zone = absl::LocalTimeZone();
};

// Bytes [begin, end) of the text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Rendering {
  std::string text;
  // What {% generation %} blocks wrote, in order: the assistant's part of a training text.
  std::vector<TextSpan> generations;
};

// Immutable; any thread may render, several at once.
class Template {
 public:
  // INVALID_ARGUMENT for what is not a template, RESOURCE_EXHAUSTED beyond a limit; the message
  // begins with "line L, column C: ".
  static absl::StatusOr<Template> Parse(std::string_view source, const LexerOptions& options = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // `context`: an object whose members are the template's variables. Errors as for Parse, with the
  // place in the template; raise_exception's message is INVALID_ARGUMENT too.
  absl::StatusOr<Rendering> Render(const nlohmann::ordered_json& context,
                                   const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax);
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace taopd::jinja
