#include <re2/re2.h>

#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/latex/normalize.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

// "(B)", "B.", "\text{B}", "B) 12 cm" -> "B"
std::string LeadingChoice(std::string_view text) {
  static const RE2 choice(
      R"(^[\s({*\\$]*(?:text|mathrm|mathbf|textbf)?[\s({*]*([A-Ja-j]|[1-9])(?:[\s)}.,:*$]|$))",
      RE2::Latin1);
  std::string found;
  RE2::PartialMatch(re2::StringPiece(text.data(), text.size()), choice, &found);
  for (char& c : found) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return found;
}

// Some questions of ARC number their choices. A digit counts as a choice in "Answer: 3", and in
// "the answer is 3" only if the reference answer is a digit, too.
std::string ExtractChoice(std::string_view text, bool is_digit) {
  if (text.find("\\boxed") != std::string_view::npos)
    return LeadingChoice(latex::BoxedContent(text, latex::BoxedMode::kLast));
  static const RE2 answer_is(R"((?i:answer)\s+is:?\s*(?:\*\*|\$)?\(?([A-J])\b)", RE2::Latin1);
  static const RE2 answer_is_digit(
      R"((?i:answer)\s+is:?\s*(?:\*\*|\$)?\(?([1-9])(?:[^\w.,]|[.,](?:\D|$)|$))", RE2::Latin1);
  static const RE2 answer_line(R"((?i:answer)\**\s*:\s*(?:\*\*|\$)?\s*\(?([A-J1-9])\b)",
                               RE2::Latin1);
  static const RE2 alone(R"(\b([A-J])\b)", RE2::Latin1);
  for (const RE2* pattern : {is_digit ? &answer_is_digit : &answer_is, &answer_line, &alone}) {
    if (const auto found = LastMatch(text, *pattern)) return *found;
  }
  return "";
}

}  // namespace

Verdict GradeChoice(std::string_view response, std::string_view answer) {
  constexpr std::string_view kThink = "</think>";
  if (const size_t think = response.rfind(kThink); think != std::string_view::npos) {
    response.remove_prefix(think + kThink.size());
  }
  Verdict verdict;
  const std::string wanted = LeadingChoice(answer);
  verdict.extracted = ExtractChoice(response, !wanted.empty() && wanted[0] <= '9');
  verdict.correct = !wanted.empty() && verdict.extracted == wanted;
  verdict.reason = wanted.empty()              ? "the reference answer names no choice"
                   : verdict.extracted.empty() ? "no choice found"
                   : verdict.correct           ? "same choice"
                                               : "another choice";
  return verdict;
}

}  // namespace taopd::grading
