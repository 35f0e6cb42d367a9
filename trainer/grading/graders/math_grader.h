// The grader of the paper's evaluation (TA-OPD's evaluation/verifier.py): math-verify 0.9 on the
// whole response and, if that finds the answer wrong, on the answer region after a "**Final
// Answer**" or "**Answer**" marker.
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/grader.h"

namespace taopd::grading {

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

// Returns math-verify's verdict on an extracted answer.
Verdict CompareAnswers(const ExtractedAnswer& gold, const ExtractedAnswer& answer);

Verdict GradeMath(std::string_view response, std::string_view answer);

}  // namespace taopd::grading
