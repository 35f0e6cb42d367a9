#include "trainer/grading/algebra/expression.h"

#include <algorithm>
#include <vector>

namespace taopd::grading {
namespace {

// A product whose elements have more nodes in total is not computed. The elements share the nodes
// of their factors, so every factor multiplies the time of a walk over them.
constexpr int64_t kMaxNodes = 1'000'000;

// Subtracts the nodes of a tree from `*num_left`. Returns false if there are more than that.
bool TakeNodes(const Expr& e, int64_t* num_left) {
  return --*num_left >= 0 && std::ranges::all_of(e.args, [num_left](const ExprPtr& arg) {
    return TakeNodes(*arg, num_left);
  });
}

ExprPtr MatrixProduct(const Expr& a, const Expr& b) {
  constexpr size_t kMaxSide = 16;
  const size_t rows = static_cast<size_t>(a.rows), inner = static_cast<size_t>(b.rows);
  const size_t columns = b.args.size() / inner;
  if (a.args.size() != rows * inner || rows > kMaxSide || inner > kMaxSide || columns > kMaxSide)
    return nullptr;
  auto product = std::make_shared<Expr>();
  product->kind = ExprKind::kMatrix;
  product->rows = a.rows;
  int64_t num_left = kMaxNodes;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      ExprPtr sum = MakeMul(a.args[r * inner], b.args[c]);
      for (size_t k = 1; k < inner; ++k)
        sum = MakeAdd(sum, MakeMul(a.args[r * inner + k], b.args[k * columns + c]));
      if (!TakeNodes(*sum, &num_left)) return nullptr;
      product->args.push_back(std::move(sum));
    }
  }
  return product;
}

}  // namespace

ExprPtr AsMatrix(const ExprPtr& e) {
  if (e->kind == ExprKind::kMatrix) return e;
  if (e->kind != ExprKind::kMul && e->kind != ExprKind::kAdd) return nullptr;
  const bool sum = e->kind == ExprKind::kAdd;
  ExprPtr matrix;
  std::vector<ExprPtr> scalars;
  for (const ExprPtr& arg : e->args) {
    ExprPtr part = AsMatrix(arg);
    if (!part && sum) return nullptr;
    if (!part) {
      scalars.push_back(arg);
    } else if (!matrix) {
      matrix = part;
    } else if (!sum) {
      if (!(matrix = MatrixProduct(*matrix, *part))) return nullptr;
    } else if (part->rows != matrix->rows || part->args.size() != matrix->args.size()) {
      return nullptr;
    } else {
      auto total = std::make_shared<Expr>(*matrix);
      for (size_t i = 0; i < total->args.size(); ++i)
        total->args[i] = MakeAdd(total->args[i], part->args[i]);
      matrix = total;
    }
  }
  if (!matrix || scalars.empty()) return matrix;
  auto scaled = std::make_shared<Expr>(*matrix);
  for (ExprPtr& element : scaled->args) {
    for (const ExprPtr& scalar : scalars) element = MakeMul(scalar, element);
  }
  return scaled;
}

ExprPtr Transposed(const Expr& m) {
  const int columns = static_cast<int>(m.args.size()) / m.rows;
  auto t = std::make_shared<Expr>();
  t->kind = ExprKind::kMatrix;
  t->rows = columns;
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < m.rows; ++r)
      t->args.push_back(m.args[static_cast<size_t>(r * columns + c)]);
  }
  return t;
}

}  // namespace taopd::grading
