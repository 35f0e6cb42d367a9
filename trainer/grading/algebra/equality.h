// Whether two answers say the same, as math-verify 0.9 judges it with its defaults (strict,
// float_rounding 6, numeric_precision 15).
#pragma once

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/algebra/operation_budget.h"

namespace taopd::grading {

// Not symmetric: the form of the gold answer decides. "x = 5" answers "5" and "5" answers "x = 5",
// while "x = 5" does not answer "y = 5". False if the budget runs out.
bool AnswersEqual(const ExprPtr& gold, const ExprPtr& answer, OperationBudget* budget);

}  // namespace taopd::grading
