#include "trainer/grading/algebra/real_set.h"

#include <algorithm>

#include "trainer/grading/algebra/numeric_value.h"

namespace taopd::grading {
namespace {

constexpr size_t kMaxPieces = 200;
using Pieces = std::vector<RealPiece>;

ExprPtr MinusInfinity() { return Negate(MakeConstant(ExprKind::kInfinity)); }
ExprPtr PlusInfinity() { return MakeConstant(ExprKind::kInfinity); }

bool HasImaginary(const Expr& e) {
  return e.kind == ExprKind::kImaginary ||
         std::ranges::any_of(e.args, [](const ExprPtr& arg) { return HasImaginary(*arg); });
}

bool IsEmpty(const RealPiece& p) {
  const int order = CompareReal(*p.start, *p.end).value_or(-1);
  return order > 0 || (order == 0 && (p.left_open || p.right_open));
}

RealPiece Overlap(const RealPiece& a, const RealPiece& b) {
  RealPiece result = a;
  const int starts = CompareReal(*a.start, *b.start).value_or(0);
  if (starts < 0) result.start = b.start, result.left_open = b.left_open;
  if (starts == 0) result.left_open = a.left_open || b.left_open;
  const int ends = CompareReal(*a.end, *b.end).value_or(0);
  if (ends > 0) result.end = b.end, result.right_open = b.right_open;
  if (ends == 0) result.right_open = a.right_open || b.right_open;
  return result;
}

Pieces Intersect(const Pieces& a, const Pieces& b) {
  Pieces result;
  for (const RealPiece& left : a) {
    for (const RealPiece& right : b) {
      RealPiece piece = Overlap(left, right);
      if (!IsEmpty(piece) && result.size() <= kMaxPieces) result.push_back(std::move(piece));
    }
  }
  return result;
}

Pieces Merge(Pieces pieces) {
  std::ranges::stable_sort(pieces, [](const RealPiece& a, const RealPiece& b) {
    const int order = CompareReal(*a.start, *b.start).value_or(0);
    return order != 0 ? order < 0 : (!a.left_open && b.left_open);
  });
  Pieces merged;
  for (RealPiece& piece : pieces) {
    if (!merged.empty()) {
      RealPiece& last = merged.back();
      const int gap = CompareReal(*last.end, *piece.start).value_or(0);
      if (gap > 0 || (gap == 0 && !(last.right_open && piece.left_open))) {
        const int ends = CompareReal(*last.end, *piece.end).value_or(0);
        if (ends < 0) last.end = piece.end, last.right_open = piece.right_open;
        if (ends == 0) last.right_open = last.right_open && piece.right_open;
        continue;
      }
    }
    merged.push_back(std::move(piece));
  }
  return merged;
}

Pieces Complement(const Pieces& merged) {
  Pieces result;
  ExprPtr start = MinusInfinity();
  bool left_open = true;
  for (const RealPiece& piece : merged) {
    RealPiece gap{start, piece.start, left_open, !piece.left_open};
    if (!IsEmpty(gap)) result.push_back(gap);
    start = piece.end;
    left_open = !piece.right_open;
  }
  RealPiece rest{start, PlusInfinity(), left_open, true};
  if (!IsEmpty(rest)) result.push_back(rest);
  return result;
}

}  // namespace

ExprPtr MakeInterval(const ExprPtr& start, const ExprPtr& end, bool left_open, bool right_open) {
  if (HasImaginary(*start) || HasImaginary(*end)) return nullptr;
  const auto order = CompareReal(*end, *start);
  if (order) {
    const bool open = left_open && right_open, closed = !left_open && !right_open;
    if ((open && *order <= 0) || (closed && *order < 0))
      return MakeNode(ExprKind::kTuple, {start, end});
    if (*order < 0 || (*order == 0 && !closed)) return MakeNode(ExprKind::kNamedSet, {});
    if (*order == 0) return MakeFiniteSet({start});
  }
  auto e = std::make_shared<Expr>();
  e->kind = ExprKind::kInterval;
  e->args = {start, end};
  e->left_open = left_open || CompareReal(*start, *MinusInfinity()).value_or(1) == 0;
  e->right_open = right_open || CompareReal(*end, *PlusInfinity()).value_or(1) == 0;
  return e;
}

std::optional<Pieces> RealPieces(const Expr& set) {
  switch (set.kind) {
    case ExprKind::kInterval:
      if (!CompareReal(*set.args[0], *set.args[1])) return std::nullopt;
      return Pieces{{set.args[0], set.args[1], set.left_open, set.right_open}};
    case ExprKind::kFiniteSet: {
      Pieces points;
      for (const ExprPtr& arg : set.args) {
        if (!CompareReal(*arg, *arg) || points.size() >= kMaxPieces) return std::nullopt;
        points.push_back({arg, arg, false, false});
      }
      return Merge(std::move(points));
    }
    case ExprKind::kNamedSet:
      if (set.name == "R") return Pieces{{MinusInfinity(), PlusInfinity(), true, true}};
      if (set.name.empty()) return Pieces{};
      return std::nullopt;
    case ExprKind::kUnion:
    case ExprKind::kIntersection:
    case ExprKind::kComplement: {
      auto left = RealPieces(*set.args[0]), right = RealPieces(*set.args[1]);
      if (!left || !right || left->size() + right->size() > kMaxPieces) return std::nullopt;
      if (set.kind == ExprKind::kIntersection) return Merge(Intersect(*left, *right));
      if (set.kind == ExprKind::kComplement) return Merge(Intersect(*left, Complement(*right)));
      left->insert(left->end(), right->begin(), right->end());
      return Merge(*std::move(left));
    }
    default:
      return std::nullopt;
  }
}

bool SamePieces(const Pieces& a, const Pieces& b) {
  return std::ranges::equal(a, b, [](const RealPiece& x, const RealPiece& y) {
    return x.left_open == y.left_open && x.right_open == y.right_open &&
           CompareReal(*x.start, *y.start).value_or(1) == 0 &&
           CompareReal(*x.end, *y.end).value_or(1) == 0;
  });
}

ExprPtr RelationAsSet(const Expr& relation) {
  if (relation.kind == ExprKind::kAnd) {
    ExprPtr result;
    for (const ExprPtr& part : relation.args) {
      ExprPtr set = RelationAsSet(*part);
      if (!set) return nullptr;
      result = result ? MakeNode(ExprKind::kIntersection, {result, set}) : set;
    }
    const auto pieces = RealPieces(*result);
    if (!pieces || pieces->size() != 1) return result;
    return MakeInterval(pieces->front().start, pieces->front().end, pieces->front().left_open,
                        pieces->front().right_open);
  }
  if (!IsRelation(relation)) return nullptr;
  const bool symbol_left =
      relation.args[0]->kind == ExprKind::kSymbol || relation.args[0]->kind == ExprKind::kCall;
  const bool symbol_right =
      relation.args[1]->kind == ExprKind::kSymbol || relation.args[1]->kind == ExprKind::kCall;
  if (symbol_left == symbol_right) return nullptr;
  const ExprPtr& bound = relation.args[symbol_left ? 1 : 0];
  if (!CompareReal(*bound, *bound)) return nullptr;
  const bool below =
      (relation.kind == ExprKind::kLt || relation.kind == ExprKind::kLe) == symbol_left;
  const bool open = relation.kind == ExprKind::kLt || relation.kind == ExprKind::kGt;
  if (relation.kind == ExprKind::kEq) return MakeFiniteSet({bound});
  if (relation.kind == ExprKind::kNe) {
    return MakeNode(ExprKind::kComplement,
                    {MakeNode(ExprKind::kNamedSet, {}, "R"), MakeFiniteSet({bound})});
  }
  return below ? MakeInterval(MinusInfinity(), bound, true, open)
               : MakeInterval(bound, PlusInfinity(), open, true);
}

}  // namespace taopd::grading
