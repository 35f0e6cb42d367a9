#include <algorithm>
#include <array>

#include "trainer/grading/algebra/equality.h"
#include "trainer/grading/graders/candidates.h"
#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/latex/normalize.h"
#include "trainer/grading/latex/parser.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

// Only the last kMaxResponseBytes of a response are read. A response of 8,192 tokens has about 32
// KiB.
constexpr size_t kMaxResponseBytes = size_t{256} << 10;
constexpr int kMaxAttempts = 300;
constexpr int64_t kMaxAttemptBytes = int64_t{1} << 20;

struct Reading {
  ExprPtr value;
  std::string text;
};

// Returns c for a = b = c, and the whole text if it has fewer than two "=" or any comma. Used as
// the second attempt if an answer cannot be parsed as a whole.
std::string_view LastSide(std::string_view latex) {
  if (latex.find_first_of(",;") != std::string_view::npos) return latex;
  size_t last = std::string_view::npos, count = 0;
  for (size_t i = 0; i < latex.size(); ++i) {
    const bool part_of_relation =
        i > 0 && std::string_view("\\<!>").find(latex[i - 1]) != std::string_view::npos;
    if (latex[i] == '=' && !part_of_relation) last = i, ++count;
  }
  return count >= 2 ? latex.substr(last + 1) : latex;
}

Reading ReadLatex(const Candidate& candidate) {
  std::vector<Reading> readings;
  for (const latex::Piece& piece : candidate.pieces) {
    Reading reading;
    reading.text = latex::Normalize(piece.text,
                                    piece.boxed ? latex::BoxedMode::kLast : latex::BoxedMode::kAll);
    reading.value = latex::Parse(reading.text);
    if (!reading.value) {
      const std::string_view side = LastSide(reading.text);
      if (side.size() < reading.text.size()) reading.value = latex::Parse(side);
    }
    if (reading.value && piece.percent)
      reading.value = MakeNode(ExprKind::kPercent, {reading.value});
    readings.push_back(std::move(reading));
  }
  const bool all =
      std::ranges::all_of(readings, [](const Reading& r) { return r.value != nullptr; });
  if (readings.size() == 1 || !all) return readings[0];
  // "1, 2 and 3"
  std::vector<ExprPtr> elements;
  Reading joined;
  for (const Reading& reading : readings) {
    if (reading.value->kind == ExprKind::kFiniteSet) {
      elements.insert(elements.end(), reading.value->args.begin(), reading.value->args.end());
    } else {
      elements.push_back(reading.value);
    }
    joined.text += (joined.text.empty() ? "" : " and ") + reading.text;
  }
  joined.value = MakeFiniteSet(elements);
  return joined;
}

// Rewrites a number with a decimal point: 1,234.5 and 1 234 have thousands separators, 12,5 and 0,5
// have a decimal comma.
std::string PlainNumber(std::string_view text) {
  std::string digits;
  size_t first_group = 0;
  bool thousands = false;
  const size_t sign = text.substr(0, 1) == "-" ? 1 : 0;
  while (sign + first_group < text.size() && IsDigit(text[sign + first_group])) ++first_group;
  size_t i = sign + first_group;
  if (first_group >= 1 && first_group <= 3 && text[sign] != '0') {
    thousands = true;
    for (size_t k = i; k < text.size() && text[k] != '.'; k += 4) {
      if (k + 3 >= text.size() || !IsDigit(text[k + 1]) || !IsDigit(text[k + 2]) ||
          !IsDigit(text[k + 3]))
        thousands = false;
      if (k + 4 < text.size() && IsDigit(text[k + 4])) thousands = false;
    }
  }
  for (const char c : text) {
    if (c == ',' || c == ' ') {
      if (!thousands) digits += '.';
    } else {
      digits += c;
    }
  }
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  if (digits.empty() || digits[0] == '.') digits.insert(0, "0");
  return digits;
}

// True for a reference like "1,22". Two digits after a comma may be hundredths, though math-verify
// reads a list of two numbers.
bool IsDecimalComma(std::string_view text) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || comma == 0 || comma + 3 != text.size()) return false;
  return std::ranges::all_of(text, [](char c) { return IsDigit(c) || c == ','; });
}

Reading Read(const Candidate& candidate) {
  if (!candidate.pieces.empty()) return ReadLatex(candidate);
  Reading reading;
  if (!candidate.arithmetic.empty()) {
    reading.text = std::string(candidate.arithmetic);
    reading.value = ParseArithmetic(candidate.arithmetic);
    return reading;
  }
  reading.text = PlainNumber(candidate.number);
  reading.value = MakeDecimal(reading.text);
  if (reading.value && candidate.percent)
    reading.value = MakeNode(ExprKind::kPercent, {reading.value});
  return reading;
}

// Returns math-verify's verdict on an extracted answer.
Verdict CompareAnswers(const ExtractedAnswer& gold, const ExtractedAnswer& answer) {
  Verdict verdict;
  verdict.extracted = answer.value ? answer.value_text : answer.first_text;
  OperationBudget budget;
  if (gold.value && answer.value && AnswersEqual(gold.value, answer.value, &budget)) {
    verdict.correct = true;
    verdict.reason = "equal";
    return verdict;
  }
  const std::string gold_text = Stripped(gold.first_text),
                    answer_text = Stripped(answer.first_text);
  if (!gold_text.empty() && gold_text == answer_text) {
    verdict.correct = true;
    verdict.reason = "same text";
  } else if (!gold.value && gold_text.empty()) {
    verdict.reason = "the reference answer has nothing to compare with";
  } else if (!answer.value && answer_text.empty()) {
    verdict.reason = "no answer found";
  } else if (!gold.value || !answer.value) {
    verdict.reason = std::string(gold.value ? "the answer" : "the reference answer") +
                     " is not readable and the texts differ";
  } else {
    verdict.reason = budget.left < 0 ? "too complex to compare" : "not equal";
  }
  return verdict;
}

}  // namespace

ExtractedAnswer ExtractAnswer(std::string_view text) {
  if (text.size() > kMaxResponseBytes) text.remove_prefix(text.size() - kMaxResponseBytes);
  ExtractedAnswer result;
  CandidateFinder finder(text);
  int attempts = 0;
  int64_t bytes = 0;
  for (auto group = finder.NextGroup(); !group.empty(); group = finder.NextGroup()) {
    for (const Candidate& candidate : group) {
      bytes += static_cast<int64_t>(candidate.end - candidate.begin);
      if (++attempts > kMaxAttempts || bytes > kMaxAttemptBytes) return result;
      Reading reading = Read(candidate);
      if (result.first_text.empty()) result.first_text = reading.text;
      if (reading.value) {
        result.value = std::move(reading.value);
        result.value_text = std::move(reading.text);
        return result;
      }
    }
  }
  return result;
}

std::string_view AnswerRegion(std::string_view response) {
  static constexpr std::array<std::string_view, 4> kMarkers = {
      "**Final Answer**", "**Final Answer:**", "**Answer**", "**Answer:**"};
  const auto next_marker = [&](size_t from, size_t* length) {
    size_t best = std::string_view::npos;
    for (const std::string_view marker : kMarkers) {
      const size_t found = response.find(marker, from);
      if (found < best) best = found, *length = marker.size();
    }
    return best;
  };
  size_t length = 0;
  const size_t first = next_marker(0, &length);
  if (first == std::string_view::npos) return response;
  const size_t second = next_marker(first + length, &length);
  if (second != std::string_view::npos) return response.substr(first, second - first);
  const std::string_view tail = response.substr(first);
  const size_t boxed = tail.find("\\boxed");
  const size_t open = boxed == std::string_view::npos ? boxed : tail.find('{', boxed);
  int depth = 0;
  for (size_t i = open; i < tail.size(); ++i) {
    if (tail[i] == '{') ++depth;
    if (tail[i] == '}' && --depth == 0) return tail.substr(0, i + 1);
  }
  return tail;
}

Verdict GradeMath(std::string_view response, std::string_view answer) {
  const ExtractedAnswer gold = ExtractAnswer("$" + std::string(answer) + "$");
  Verdict verdict = CompareAnswers(gold, ExtractAnswer(response));
  if (verdict.correct) return verdict;
  if (IsDecimalComma(answer)) {
    Verdict plain = CompareAnswers(ExtractAnswer(answer), ExtractAnswer(response));
    if (plain.correct) return plain;
  }
  const std::string region = Stripped(AnswerRegion(response));
  if (region.size() == Stripped(response).size()) return verdict;
  Verdict second = CompareAnswers(gold, ExtractAnswer(region));
  return second.correct ? second : verdict;
}

}  // namespace taopd::grading
