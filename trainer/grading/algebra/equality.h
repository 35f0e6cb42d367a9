// Decides whether two answers are equal by the rules of math-verify 0.9 with its defaults (strict,
// float_rounding 6, numeric_precision 15).
#pragma once

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

// Returns whether `answer` matches `gold`. The relation is not symmetric: the form of the gold
// answer decides. "x = 5" matches "5" and "5" matches "x = 5", but "x = 5" does not match "y = 5".
// Returns false if the budget runs out.
bool AnswersEqual(const ExprPtr& gold, const ExprPtr& answer, OperationBudget* budget);

}  // namespace taopd::grading
