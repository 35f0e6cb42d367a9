#include "trainer/bandit/landscape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "taopd/head/dense_row.h"

namespace taopd::bandit {
namespace {

using Matrix = std::vector<std::vector<double>>;

double Dot(const std::vector<double>& left, const std::vector<double>& right) {
  return std::inner_product(left.begin(), left.end(), right.begin(), 0.0);
}

std::vector<double> Centered(std::vector<double> logits) {
  const double mean =
      std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(logits.size());
  for (double& z : logits) z -= mean;
  return logits;
}

// Makes matrix[p][q] zero by a rotation in the plane of p and q (Golub and Van Loan, "Matrix
// Computations", the classical Jacobi method), and applies it to the eigenvectors.
void Rotate(size_t p, size_t q, Matrix* matrix, Matrix* vectors) {
  Matrix& a = *matrix;
  if (a[p][q] == 0) return;
  const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1);
  const double s = t * c;
  const auto turn = [c, s](double* at_p, double* at_q) {
    const double from_p = *at_p, from_q = *at_q;
    *at_p = c * from_p - s * from_q;
    *at_q = s * from_p + c * from_q;
  };
  for (std::vector<double>& row : a) turn(&row[p], &row[q]);
  for (size_t i = 0; i < a.size(); ++i) {
    turn(&a[p][i], &a[q][i]);
    turn(&(*vectors)[p][i], &(*vectors)[q][i]);
  }
}

double OffDiagonal(const Matrix& matrix) {
  double sum = 0;
  for (size_t i = 0; i < matrix.size(); ++i) {
    for (size_t j = 0; j < i; ++j) sum += matrix[i][j] * matrix[i][j];
  }
  return sum;
}

}  // namespace

Eigen SymmetricEigen(Matrix matrix) {
  // The method converges quadratically: about 8 sweeps are enough for 30 x 30.
  constexpr int kMaxSweeps = 60;
  // A share of the squared norm, at the level of float64's rounding.
  constexpr double kTolerance = 1e-28;
  const size_t n = matrix.size();
  Matrix vectors(n, std::vector<double>(n, 0));
  double norm = 0;
  for (size_t i = 0; i < n; ++i) {
    vectors[i][i] = 1;
    norm += Dot(matrix[i], matrix[i]);
  }
  for (int sweep = 0; sweep < kMaxSweeps && OffDiagonal(matrix) > kTolerance * norm; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) Rotate(p, q, &matrix, &vectors);
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](size_t left, size_t right) { return matrix[left][left] > matrix[right][right]; });
  Eigen eigen;
  for (size_t i : order) {
    eigen.values.push_back(matrix[i][i]);
    eigen.vectors.push_back(vectors[i]);
  }
  return eigen;
}

Plane PrincipalPlane(const std::vector<std::vector<double>>& points) {
  const size_t n = points[0].size();
  Plane plane;
  plane.origin.assign(n, 0);
  for (const auto& point : points) {
    for (size_t i = 0; i < n; ++i) plane.origin[i] += point[i] / static_cast<double>(points.size());
  }
  Matrix covariance(n, std::vector<double>(n, 0));
  for (const auto& point : points) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        covariance[i][j] += (point[i] - plane.origin[i]) * (point[j] - plane.origin[j]);
      }
    }
  }
  Eigen eigen = SymmetricEigen(std::move(covariance));
  const double total = std::accumulate(eigen.values.begin(), eigen.values.end(), 0.0);
  for (int axis = 0; axis < 2; ++axis) {
    std::vector<double>& vector = eigen.vectors[axis];
    const auto largest = std::ranges::max_element(
        vector, [](double x, double y) { return std::abs(x) < std::abs(y); });
    if (*largest < 0) {
      for (double& x : vector) x = -x;
    }
    plane.axes[axis] = vector;
    plane.variance_share[axis] = total > 0 ? eigen.values[axis] / total : 0;
  }
  return plane;
}

PlanePoint Project(const Plane& plane, const std::vector<double>& point) {
  std::vector<double> from_origin(point);
  for (size_t i = 0; i < point.size(); ++i) from_origin[i] -= plane.origin[i];
  return {Dot(from_origin, plane.axes[0]), Dot(from_origin, plane.axes[1])};
}

namespace {

// Returns the reverse KL, to the teacher with these log-probabilities, of the policy at a point.
double KlAt(const Plane& plane, double x, double y, const std::vector<double>& log_q) {
  std::vector<double> logits(plane.origin);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] += x * plane.axes[0][i] + y * plane.axes[1][i];
  double kl = 0;
  const std::vector<double> log_p = cpu::LogSoftmax(logits);
  for (size_t v = 0; v < log_p.size(); ++v) kl += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
  return std::max(kl, 0.0);
}

}  // namespace

Landscape MakeLandscape(const Result& result) {
  // The margin on each side, as a share of the paths' extent.
  constexpr double kMargin = 0.12;
  std::vector<double> log_q;
  for (double q : result.teacher) log_q.push_back(std::log(q));
  const std::vector<double> teacher = Centered(log_q);

  std::vector<std::vector<double>> points = {teacher};
  for (const ObjectiveRun& run : result.runs) {
    for (const TrajectoryPoint& point : run.trajectory) points.push_back(Centered(point.logits));
  }
  Landscape landscape;
  landscape.plane = PrincipalPlane(points);
  landscape.teacher = Project(landscape.plane, teacher);
  double low_x = landscape.teacher.x, high_x = low_x;
  double low_y = landscape.teacher.y, high_y = low_y;
  for (const ObjectiveRun& run : result.runs) {
    std::vector<PlanePoint>& path = landscape.paths.emplace_back();
    for (const TrajectoryPoint& point : run.trajectory) {
      const PlanePoint at = Project(landscape.plane, Centered(point.logits));
      low_x = std::min(low_x, at.x);
      high_x = std::max(high_x, at.x);
      low_y = std::min(low_y, at.y);
      high_y = std::max(high_y, at.y);
      path.push_back(at);
    }
  }
  const double margin_x = std::max(kMargin * (high_x - low_x), 1e-3);
  const double margin_y = std::max(kMargin * (high_y - low_y), 1e-3);
  landscape.min_x = low_x - margin_x;
  landscape.max_x = high_x + margin_x;
  landscape.min_y = low_y - margin_y;
  landscape.max_y = high_y + margin_y;

  for (int row = 0; row < kLandscapeRows; ++row) {
    std::vector<double>& values = landscape.full_kl.emplace_back();
    const double y =
        landscape.min_y + (landscape.max_y - landscape.min_y) * row / (kLandscapeRows - 1);
    for (int column = 0; column < kLandscapeColumns; ++column) {
      const double x =
          landscape.min_x + (landscape.max_x - landscape.min_x) * column / (kLandscapeColumns - 1);
      values.push_back(KlAt(landscape.plane, x, y, log_q));
    }
  }
  return landscape;
}

}  // namespace taopd::bandit
