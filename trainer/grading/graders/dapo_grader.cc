#include <re2/re2.h>

#include <algorithm>
#include <array>

#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

constexpr size_t kTailCharacters = 300;

std::string_view LastCharacters(std::string_view text, size_t count) {
  size_t i = text.size();
  while (i > 0 && count > 0) {
    --i;
    if (!ContinuesCharacter(text[i])) --count;
  }
  return text.substr(i);
}

std::string NormalizeDapoAnswer(std::string_view answer) {
  std::string text(answer.substr(answer.rfind('=') + 1));
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kSubstitutions = {{
      {"an ", ""},
      {"a ", ""},
      {".$", "$"},
      {"\\$", ""},
      {"\\ ", ""},
      {" ", ""},
      {"mbox", "text"},
      {",\\text{and}", ","},
      {"\\text{and}", ","},
      {"\\text{m}", "\\text{}"},
  }};
  static constexpr std::string_view kRemoved[] = {
      "square",     "ways",       "integers",  "dollars",      "mph",
      "inches",     "hours",      "km",        "units",        "\\ldots",
      "sue",        "points",     "feet",      "minutes",      "digits",
      "cents",      "degrees",    "cm",        "gm",           "pounds",
      "meters",     "meals",      "edges",     "students",     "childrentickets",
      "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
      "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
      "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
      "\\dots"};
  for (const auto& [from, to] : kSubstitutions) ReplaceAll(&text, from, to);
  for (const std::string_view word : kRemoved) ReplaceAll(&text, word, "");
  struct Rewrite {
    RE2 pattern;
    std::string replacement;
  };
  static const Rewrite kRewrites[] = {
      {RE2(R"((.*?)(\$)(.*?)(\$)(.*))", RE2::Latin1), R"($\3$)"},
      {RE2(R"((\\text\{)(.*?)(\}))", RE2::Latin1), R"(\2)"},
      {RE2(R"((\\textbf\{)(.*?)(\}))", RE2::Latin1), R"(\2)"},
      {RE2(R"((\\overline\{)(.*?)(\}))", RE2::Latin1), R"(\2)"},
      {RE2(R"((\\boxed\{)(.*)(\}))", RE2::Latin1), R"(\2)"},
      {RE2(R"((frac)([^{])(.))", RE2::Latin1), R"(frac{\2}{\3})"},
      {RE2(R"((sqrt)([^{]))", RE2::Latin1), R"(sqrt{\2})"},
  };
  for (const Rewrite& rewrite : kRewrites)
    RE2::GlobalReplace(&text, rewrite.pattern, rewrite.replacement);
  ReplaceAll(&text, "$", "");
  std::string digits = text;
  ReplaceAll(&digits, ",", "");
  if (!digits.empty() && std::ranges::all_of(digits, IsDigit)) text = digits;
  return Stripped(text);
}

}  // namespace

Verdict GradeDapo(std::string_view response, std::string_view answer) {
  const std::string_view tail = LastCharacters(response, kTailCharacters);
  static const RE2 line(R"((?i)Answer\s*:\s*([^\n]+))", RE2::Latin1);
  const std::optional<std::string> last = LastMatch(tail, line);
  Verdict verdict;
  if (!last) {
    verdict.reason = "no \"Answer:\" line at the end";
    return verdict;
  }
  verdict.extracted = NormalizeDapoAnswer(*last);
  verdict.correct = verdict.extracted == NormalizeDapoAnswer(answer);
  verdict.reason = verdict.correct ? "same text" : "another text";
  return verdict;
}

}  // namespace taopd::grading
