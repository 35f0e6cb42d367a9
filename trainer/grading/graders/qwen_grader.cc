#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "trainer/grading/algebra/equality.h"
#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/latex/normalize.h"
#include "trainer/grading/latex/parser.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

constexpr size_t kMaxAnswerBytes = 20000;
constexpr double kRelativeTolerance = 1e-4;

// Normalizes the text of an answer as the Qwen2.5-Math evaluation does.
std::string Normalize(std::string_view answer) {
  std::string text = Stripped(answer.substr(0, kMaxAnswerBytes));
  ReplaceAll(&text, "\n", "");
  while (!text.empty() && text.back() == '.') text.pop_back();
  static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {"\\!", ""},        {"\\ ", ""},
      {"\\\\", "\\"},     {"tfrac", "frac"},
      {"dfrac", "frac"},  {"\\neq", "\\ne"},
      {"\\leq", "\\le"},  {"\\geq", "\\ge"},
      {"\\left", ""},     {"\\right", ""},
      {"\\{", "{"},       {"\\}", "}"},
      {"^{\\circ}", ""},  {"^\\circ", ""},
      {"\\$", ""},        {"$", ""},
      {"\\(", ""},        {"\\)", ""},
      {"\\%", ""},        {"%", ""},
      {" .", " 0."},      {"{.", "{0."},
      {"\\mathbf", ""},   {"\\mathrm", ""},
      {"\\cdot", ""},     {"infinity", "\\infty"},
      {"inf", "\\infty"}, {"and", ""}};
  // A unit in \text{} after a value is dropped; a word in \text{} is kept.
  static const RE2 unit(R"((.)\\text\{[^{}]*\}(?:\^\{?\d\}?)?$)", RE2::Latin1);
  static const RE2 word(R"(\\text\{([^{}]*)\})", RE2::Latin1);
  RE2::Replace(&text, unit, R"(\1)");
  for (const auto& [from, to] : kReplacements) {
    if (from == "inf" && text.find("\\inf") != std::string::npos) continue;
    ReplaceAll(&text, from, to);
  }
  RE2::GlobalReplace(&text, word, R"(\1)");
  if (const size_t equals = text.find('='); equals != std::string::npos && equals <= 2 &&
                                            text.find('=', equals + 1) == std::string::npos) {
    // k = 5
    text.erase(0, equals + 1);
  }
  static const RE2 root(R"(\\sqrt(\w))", RE2::Latin1);
  static const RE2 fraction(R"(\\frac(\d)(\d))", RE2::Latin1);
  static const RE2 zeros(R"((\d+)\.0*([^\d]|$))", RE2::Latin1);
  RE2::GlobalReplace(&text, root, R"(\\sqrt{\1})");
  RE2::GlobalReplace(&text, fraction, R"(\\frac{\1}{\2})");
  RE2::GlobalReplace(&text, zeros, R"(\1\2)");
  ReplaceAll(&text, " ", "");
  if (!text.empty() && text[0] == '.') text.insert(0, "0");
  return text;
}

std::string Extract(std::string_view response) {
  if (response.find("boxed{") != std::string_view::npos) {
    const size_t last = response.rfind("\\boxed");
    if (last != std::string_view::npos) response.remove_prefix(last);
    return Normalize(latex::BoxedContent(response, latex::BoxedMode::kLast));
  }
  for (const std::string_view phrase : {"he answer is", "final answer is"}) {
    const size_t at = response.rfind(phrase);
    if (at == std::string_view::npos) continue;
    std::string_view rest = response.substr(at + phrase.size());
    rest = rest.substr(0, rest.find('\n'));
    while (!rest.empty() && (rest[0] == ':' || IsSpace(rest[0]))) rest.remove_prefix(1);
    return Normalize(rest);
  }
  std::string numbers(response);
  ReplaceAll(&numbers, ",", "");
  static const RE2 number(R"((-?\d*\.?\d+))", RE2::Latin1);
  return Normalize(LastMatch(numbers, number).value_or(""));
}

std::optional<double> ParseQwenNumber(std::string text) {
  ReplaceAll(&text, ",", "");
  bool percent = false;
  if (!text.empty() && text.back() == '%') {
    percent = true;
    text.pop_back();
    if (!text.empty() && text.back() == '\\') text.pop_back();
  }
  if (text.size() > 400) return std::nullopt;
  const ExprPtr exact = MakeDecimal(text);
  if (!exact) return std::nullopt;
  const double value = exact->number.convert_to<double>();
  return percent ? value / 100 : value;
}

bool AreClose(double reference, double value) {
  for (const double target : {reference / 100, reference, reference * 100}) {
    if (std::abs(target - value) <=
        kRelativeTolerance * std::max(std::abs(target), std::abs(value)))
      return true;
  }
  return false;
}

// Returns the comma-separated parts of (a, b) or [a, b], and nothing for any other text.
std::vector<std::string> ListElements(const std::string& text) {
  if (text.size() < 2 || (text[0] != '(' && text[0] != '[') ||
      (text.back() != ')' && text.back() != ']'))
    return {};
  std::vector<std::string> parts(1);
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == ',') {
      parts.emplace_back();
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

bool AreEqual(const std::string& gold, const std::string& answer, int depth) {
  if (LowerCase(gold) == LowerCase(answer)) return true;
  const auto gold_number = ParseQwenNumber(gold), answer_number = ParseQwenNumber(answer);
  if (gold_number && answer_number) return AreClose(*gold_number, *answer_number);
  if (gold.empty() || answer.empty()) return false;
  const auto gold_parts = ListElements(gold), answer_parts = ListElements(answer);
  if (depth < 3 && gold_parts.size() > 1 && gold_parts.size() == answer_parts.size()) {
    bool all = true;
    for (size_t i = 0; i < gold_parts.size() && all; ++i)
      all = AreEqual(gold_parts[i], answer_parts[i], depth + 1);
    if (all) return true;
  }
  const ExprPtr left = latex::Parse(gold), right = latex::Parse(answer);
  OperationBudget budget;
  return left && right && AnswersEqual(left, right, &budget);
}

}  // namespace

Verdict GradeQwenMath(std::string_view response, std::string_view answer) {
  Verdict verdict;
  verdict.extracted = Extract(response);
  verdict.correct = !verdict.extracted.empty() && AreEqual(Normalize(answer), verdict.extracted, 0);
  verdict.reason = verdict.extracted.empty() ? "no answer found"
                   : verdict.correct         ? "equal"
                                             : "not equal";
  return verdict;
}

}  // namespace taopd::grading
