// Matrices of expressions.
#pragma once

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

// Returns `e` as one kMatrix, if it is a matrix, a product of numbers and matrices, or a sum of
// those. Returns nullptr if it is anything else, or if the shapes do not fit.
ExprPtr AsMatrix(const ExprPtr& e);

// `m` is a kMatrix.
ExprPtr Transposed(const Expr& m);

}  // namespace taopd::grading
