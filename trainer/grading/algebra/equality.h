// Whether two answers say the same, as math-verify 0.9 judges it (its defaults: strict,
// float_rounding 6, numeric_precision 15). Where it asks sympy to simplify a difference, this
// compares values (evaluate.h).
//
// Not symmetric: the form of the gold answer decides, so that "x = 5" answers "5" and "5" answers
// "x = 5", while "x = 5" does not answer "y = 5".
#pragma once

#include "trainer/grading/algebra/evaluate.h"
#include "trainer/grading/algebra/expression.h"

namespace taopd {

// False also when the budget runs out.
bool AnswersEqual(const ExprPtr& gold, const ExprPtr& answer, OperationBudget* budget);

}  // namespace taopd
