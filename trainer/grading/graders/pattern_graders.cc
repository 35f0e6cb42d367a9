// The graders `exact`, `numeric` and `regex`.

#include <re2/re2.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

std::optional<double> ParseNumber(std::string text) {
  std::erase(text, ',');
  if (!text.empty() && text[0] == '+') text.erase(0, 1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

class PatternGrader final : public Grader {
 public:
  PatternGrader(bool numeric, std::unique_ptr<RE2> pattern)
      : numeric_(numeric), pattern_(std::move(pattern)) {}

 private:
  Verdict GradeAnswer(std::string_view response, std::string_view answer,
                      std::string_view) const override {
    Verdict verdict;
    if (pattern_ == nullptr) {
      verdict.extracted = Stripped(response);
    } else if (std::string found; RE2::PartialMatch(
                   re2::StringPiece(response.data(), response.size()), *pattern_, &found)) {
      verdict.extracted = Stripped(found);
    } else {
      verdict.reason = "the pattern does not match";
      return verdict;
    }
    const std::string wanted = Stripped(answer);
    if (!numeric_) {
      verdict.correct = verdict.extracted == wanted;
      verdict.reason = verdict.correct ? "same text" : "another text";
      return verdict;
    }
    const auto left = ParseNumber(verdict.extracted), right = ParseNumber(wanted);
    verdict.correct = left && right && std::isfinite(*left) && *left == *right;
    verdict.reason = !left             ? "not a number"
                     : !right          ? "the reference answer is not a number"
                     : verdict.correct ? "same number"
                                       : "another number";
    return verdict;
  }

  const bool numeric_;
  const std::unique_ptr<RE2> pattern_;
};

absl::StatusOr<std::unique_ptr<Grader>> MakePattern(bool numeric,
                                                    const std::string& answer_pattern) {
  std::unique_ptr<RE2> pattern;
  if (!answer_pattern.empty()) {
    pattern = std::make_unique<RE2>(answer_pattern, RE2::Quiet);
    if (!pattern->ok())
      return InvalidArgument("answer_pattern \"", answer_pattern, "\": ", pattern->error());
    if (pattern->NumberOfCapturingGroups() < 1) {
      return InvalidArgument("answer_pattern \"", answer_pattern, "\" has no group for the answer");
    }
  }
  return std::make_unique<PatternGrader>(numeric, std::move(pattern));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Grader>> MakeExactGrader(const std::string& answer_pattern) {
  return MakePattern(false, answer_pattern);
}
absl::StatusOr<std::unique_ptr<Grader>> MakeNumericGrader(const std::string& answer_pattern) {
  return MakePattern(true, answer_pattern);
}

Verdict GradeRegex(std::string_view response, std::string_view answer) {
  constexpr size_t kMaxPatternBytes = 4000;
  Verdict verdict;
  verdict.extracted = Stripped(response);
  if (answer.size() > kMaxPatternBytes) {
    verdict.reason = Concat("the reference answer has more than ", kMaxPatternBytes, " bytes");
    return verdict;
  }
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(int64_t{1} << 20);
  const RE2 pattern(re2::StringPiece(answer.data(), answer.size()), options);
  if (!pattern.ok()) {
    verdict.reason = "the reference answer is not a regular expression: " + pattern.error();
    return verdict;
  }
  verdict.correct = RE2::FullMatch(verdict.extracted, pattern);
  verdict.reason = verdict.correct ? "matches" : "does not match";
  return verdict;
}

}  // namespace taopd::grading
