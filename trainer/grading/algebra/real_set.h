// Sets of real numbers as sorted, disjoint intervals.
#pragma once

#include <optional>
#include <vector>

#include "trainer/grading/algebra/expression.h"

namespace taopd {

struct RealPiece {
  ExprPtr start, end;
  bool left_open = false, right_open = false;
};

// (a, b), [a, b), ... as sympy builds it. A pair that could only be empty is a tuple instead: (3,
// 1) is a point. nullptr for complex ends.
ExprPtr MakeInterval(const ExprPtr& start, const ExprPtr& end, bool left_open, bool right_open);

// nullopt when an end is not a real number or the expression is not such a set.
std::optional<std::vector<RealPiece>> RealPieces(const Expr& set);

bool SamePieces(const std::vector<RealPiece>& a, const std::vector<RealPiece>& b);

// 1 < x <= 2 as (1, 2]: relations between one symbol and numbers. nullptr for others.
ExprPtr RelationAsSet(const Expr& relation);

}  // namespace taopd
