// Sets of real numbers as sorted, disjoint intervals.
#pragma once

#include <optional>
#include <vector>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

struct RealPiece {
  ExprPtr start, end;
  bool left_open = false, right_open = false;
};

// Returns (a, b), [a, b), ... as sympy builds it. A pair that would be an empty interval, such as
// (3, 1), is a tuple (a point). Returns nullptr if an end is complex.
ExprPtr MakeInterval(const ExprPtr& start, const ExprPtr& end, bool left_open, bool right_open);

// Returns nullopt if an end is not a real number, or if the expression is not a set of real
// numbers.
std::optional<std::vector<RealPiece>> RealPieces(const Expr& set);

bool SamePieces(const std::vector<RealPiece>& a, const std::vector<RealPiece>& b);

// Returns 1 < x <= 2 as (1, 2]. Returns nullptr unless the relations are between one symbol and
// numbers.
ExprPtr RelationAsSet(const Expr& relation);

}  // namespace taopd::grading
