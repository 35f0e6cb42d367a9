// Jinja templates, rendered exactly as Python's jinja2 3.1.6 does in the configuration that
// transformers uses for chat templates: immutable sandbox, trim_blocks, lstrip_blocks, loop
// controls, tojson without HTML escapes, raise_exception, strftime_now and {% generation %}.
//
// Inheritance, imports, translations and the filters for HTML pages are not supported; each is
// refused by name. Integers have 64 bits, and an overflow is an error. A template can neither hang
// nor exhaust memory (limits.h).
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
  // The time that strftime_now shows.
  absl::Time now = absl::Now();
  absl::TimeZone time_zone = absl::LocalTimeZone();
};

// The bytes [begin, end) of a text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Rendering {
  std::string text;
  // The parts that the {% generation %} blocks wrote, in order: the assistant's parts of a training
  // text.
  std::vector<TextSpan> generations;
};

// Immutable and thread-safe.
class Template {
 public:
  // Returns INVALID_ARGUMENT if the source is not a template, and RESOURCE_EXHAUSTED if it exceeds
  // a limit. The message starts with "line L, column C: ".
  static absl::StatusOr<Template> Parse(std::string_view source, const LexerOptions& options = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Renders the template. `context` is an object whose members are the template's variables. Errors
  // are those of Parse, with the place in the template. raise_exception returns INVALID_ARGUMENT
  // with its message.
  absl::StatusOr<Rendering> Render(const nlohmann::ordered_json& context,
                                   const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax);
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace taopd::jinja
