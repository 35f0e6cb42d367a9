// The engine's interface: errors with their positions, spans of generations, limits of the subset.
#include "common/text/jinja/template.h"

#include "tests/support/status_matchers.h"

namespace taopd::jinja {
namespace {

using nlohmann::ordered_json;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<Rendering> RenderText(const std::string& source,
                                     const ordered_json& context = ordered_json::object()) {
  TAOPD_ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  return parsed.Render(context);
}

TEST(Template, SyntaxErrorsSayLineAndColumn) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\n  {{ 1 + }}", "line 2, column 10: expected an expression, got end of print statement"},
      {"{% if x %}\n{% endfor %}",
       "line 2, column 4: unknown tag 'endfor', expected 'elif' or 'else' or 'endif'"},
      {"{% if x %}",
       "line 1, column 11: end of template, but expected 'elif' or 'else' or 'endif'"},
      {"{{ x | nothing }}", "line 1, column 8: no filter named 'nothing'"},
      {"{{ x is nothing }}", "line 1, column 6: no test named 'nothing'"},
      {"\n\n{% include 'x' %}",
       "line 3, column 4: tag 'include' is not supported in chat templates"},
      {"{{ 'abc }}", "line 1, column 4: missing end of string"},
      {"{{ (1] }}", "line 1, column 6: unexpected ']', expected ')'"},
      {"x {# never", "line 1, column 3: missing end of comment tag"},
      {"{% raw %} {{", "line 1, column 1: missing end of raw directive"},
      {"{{ x ", "line 1, column 1: missing }}"},
      {"{% break %}", "line 1, column 4: 'break' outside of a loop"},
      {"{% set true = 1 %}", "line 1, column 8: can't assign to 'true'"},
      {"{{ \u00e9\u00e9 ? }}", "line 1, column 7: unexpected character '?'"},
      {"{{ f(a=1, 2) }}", "line 1, column 5: invalid syntax for function call expression"},
      {"{% macro f(a=1, b) %}{% endmacro %}",
       "line 1, column 17: non-default argument follows default argument"},
      {"{{ 99999999999999999999 }}", "more than 63 bits"},
  };
  for (const auto& [source, message] : cases) {
    SCOPED_TRACE(source);
    EXPECT_ERROR(Template::Parse(source), kInvalid, message);
  }
  EXPECT_ERROR(Template::Parse("a\xFF"), kInvalid, "UTF-8");
}

TEST(Template, ErrorsOfRenderingSayLineAndColumn) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\n{{ x.y }}", "line 2, column 5: 'x' is undefined"},
      {"{{ 1 + 'a' }}", "line 1, column 6: unsupported operand type(s) for +: 'int' and 'str'"},
      {"{{ 'a' + 1 }}", "line 1, column 8: can only concatenate str (not \"int\") to str"},
      {"{{ {}.x.y }}", "line 1, column 8: 'dict object' has no attribute 'x'"},
      {"\n{{ raise_exception('no tools') }}", "line 2, column 19: no tools"},
      {"{{ [].append(1) }}", "access to attribute 'append' of 'list' object is unsafe."},
      {"{% set x.y = 1 %}", "line 1, column 8: cannot assign attribute on non-namespace object"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "more than 63 bits"},
      {"{{ [1, 'a']|sort }}", "'<' not supported between instances of"},
      {"{% for a, b in [[1]] %}{% endfor %}", "cannot unpack 1 values into 2"},
      {"{{ 1() }}", "'int' object is not callable"},
      {"{{ x|tojson(nothing=1) }}", "tojson has no argument 'nothing'"},
  };
  for (const auto& [source, message] : cases) {
    SCOPED_TRACE(source);
    EXPECT_ERROR(RenderText(source), kInvalid, message);
  }
}

TEST(Template, IntegersBeyond63BitsOfTheContextAreRefused) {
  EXPECT_ERROR(RenderText("{{ x }}", {{"x", uint64_t{1} << 63}}), kInvalid, "more than 63 bits");
  EXPECT_OK(RenderText("{{ y }}", {{"x", uint64_t{1} << 63}}));
}

TEST(Template, GenerationsAreSpansOfTheText) {
  const auto rendering = RenderText(
      "{% for m in ms %}<{{ m }}>{% generation %}{{ m }}\u00e9{% endgeneration %};\n{% endfor %}",
      {{"ms", {"ab", "c"}}});
  ASSERT_OK(rendering);
  EXPECT_EQ(rendering->text, "<ab>ab\u00e9;\n<c>c\u00e9;\n");
  ASSERT_EQ(rendering->generations.size(), 2u);
  auto part = [&](size_t i) {
    const TextSpan span = rendering->generations[i];
    return rendering->text.substr(static_cast<size_t>(span.begin),
                                  static_cast<size_t>(span.end - span.begin));
  };
  EXPECT_EQ(part(0), "ab\u00e9");
  EXPECT_EQ(part(1), "c\u00e9");
}

TEST(Template, TheClockIsGiven) {
  const auto parsed = Template::Parse("{{ strftime_now('%d %b %Y %H:%M') }}");
  ASSERT_OK(parsed);
  RenderOptions options;
  options.time_zone = absl::UTCTimeZone();
  options.now = absl::FromCivil(absl::CivilMinute(2024, 2, 29, 7, 5), options.time_zone);
  const auto rendering = parsed->Render(ordered_json::object(), options);
  ASSERT_OK(rendering);
  EXPECT_EQ(rendering->text, "29 Feb 2024 07:05");
}

}  // namespace
}  // namespace taopd::jinja
