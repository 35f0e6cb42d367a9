// The graders behind the rows of the registry. Only registry.cc and the files that define these
// functions include this header.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "trainer/grading/grader.h"

namespace taopd::grading {

// Compare the text that `answer_pattern` finds (see Grader::Make) with the answer: the first as
// text, the second as decimal numbers.
absl::StatusOr<std::unique_ptr<Grader>> MakeExactGrader(const std::string& answer_pattern);
absl::StatusOr<std::unique_ptr<Grader>> MakeNumericGrader(const std::string& answer_pattern);

// The reference answer is an RE2 expression that the whole response must match. `answer_pattern` is
// empty.
absl::StatusOr<std::unique_ptr<Grader>> MakeRegexGrader(const std::string& answer_pattern);

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
