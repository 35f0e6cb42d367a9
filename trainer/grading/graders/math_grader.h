// The paper's evaluation grader: math-verify 0.9 on the whole response, and if that says no, on the
// answer region after a "**Final Answer**" or "**Answer**" marker (TA-OPD's
// evaluation/verifier.py).
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/grader.h"

namespace taopd {

// What a text answers: the first place (candidates.h) that parses, and the text of the first place
// of all.
struct ExtractedAnswer {
  ExprPtr value;           // nullptr: nothing parsed
  std::string value_text;  // what `value` was read from
  std::string first_text;  // compared as text when nothing else decides
};
ExtractedAnswer ExtractAnswer(std::string_view text);

// The region that the second attempt reads; the whole text, stripped, where there is no marker.
std::string_view AnswerRegion(std::string_view response);

// math-verify's verdict on an extracted answer.
Verdict CompareAnswers(const ExtractedAnswer& gold, const ExtractedAnswer& answer);

Verdict GradeMath(std::string_view response, std::string_view answer);

}  // namespace taopd
