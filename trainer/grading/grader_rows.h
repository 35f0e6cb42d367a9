// What the rows of the registry are made of. Only registry.cc and the files that define these
// include it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "trainer/grading/grader.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<Grader>> MakeExactGrader(const std::string& answer_pattern);
absl::StatusOr<std::unique_ptr<Grader>> MakeNumericGrader(const std::string& answer_pattern);
absl::StatusOr<std::unique_ptr<Grader>> MakeRegexGrader(const std::string& answer_pattern);

// DAPO's rule (verl's math_dapo): the last "Answer:" line of the last 300 characters, normalised as
// text (Lewkowycz et al., 2022, appendix D), equal to the normalised answer.
Verdict GradeDapo(std::string_view response, std::string_view answer);
std::string NormalizeDapoAnswer(std::string_view answer);

// Qwen2.5-Math's evaluation: last box, "the answer is" or last number; equal text, equal number
// (relative 1e-4, also as percent), equal element by element, or equal value.
Verdict GradeQwenMath(std::string_view response, std::string_view answer);

// A letter among choices, as ARC-c and MMLU-Pro ask for it: boxed, "answer is (B)", "Answer: B", or
// the last letter that stands alone; after the last </think>.
Verdict GradeChoice(std::string_view response, std::string_view answer);

}  // namespace taopd
