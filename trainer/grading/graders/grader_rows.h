// The graders behind the rows of the registry. Only registry.cc, the files that define these
// functions and tests include this header.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/grader.h"

namespace taopd::grading {

// The grader of the paper's evaluation (TA-OPD's evaluation/verifier.py): math-verify 0.9 on the
// whole response and, if that finds the answer wrong, on the answer region after a "**Final
// Answer**" or "**Answer**" marker.
Verdict GradeMath(std::string_view response, std::string_view answer);

// The answer that a text gives, read at the places that candidates.h describes.
struct ExtractedAnswer {
  // The first place that can be parsed. nullptr if there is none.
  ExprPtr value;
  // The text that `value` was read from.
  std::string value_text;
  // The text of the first place. It is compared as text if the values decide nothing.
  std::string first_text;
};
ExtractedAnswer ExtractAnswer(std::string_view text);

// Returns the region that the second attempt reads, or the whole response if it has no marker.
std::string_view AnswerRegion(std::string_view response);

// Compare the text that `answer_pattern` finds (see Grader::Make) with the answer: the first as
// text, the second as decimal numbers.
absl::StatusOr<std::unique_ptr<Grader>> MakeExactGrader(const std::string& answer_pattern);
absl::StatusOr<std::unique_ptr<Grader>> MakeNumericGrader(const std::string& answer_pattern);

// The reference answer is an RE2 expression that the whole response must match.
Verdict GradeRegex(std::string_view response, std::string_view answer);

// DAPO's rule (verl's math_dapo): the last "Answer:" line within the last 300 characters of the
// response is normalized as text (Lewkowycz et al., 2022, appendix D) and must equal the normalized
// answer.
Verdict GradeDapo(std::string_view response, std::string_view answer);

// The rules of the Qwen2.5-Math evaluation. The answer is the last box, the text after the last
// "the answer is", or the last number. It is right if one of these holds:
//   - the normalized texts are equal,
//   - the numbers are equal within 1e-4, also as percentages,
//   - the lists are equal element by element,
//   - the values are equal.
Verdict GradeQwenMath(std::string_view response, std::string_view answer);

// Grades a choice by its letter, as in ARC-c and MMLU-Pro. Only the text after the last </think>
// counts. The letter is the boxed one, or the one in "answer is (B)" or "Answer: B", or the last
// letter that stands alone.
Verdict GradeChoice(std::string_view response, std::string_view answer);

}  // namespace taopd::grading
