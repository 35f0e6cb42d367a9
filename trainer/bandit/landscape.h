// The bandit's trajectories over the landscape of the full-vocabulary reverse KL (paper, figure
// "Learning dynamics of different OPD objectives"). The logits of all runs and of the teacher are
// centered, because a shift of all logits changes no policy, and projected onto their first two
// principal components. The landscape is the KL of the policies on that plane.
#pragma once

#include <array>
#include <vector>

#include "trainer/bandit/bandit.h"

namespace taopd::bandit {

struct PlanePoint {
  double x = 0, y = 0;
};

// The points origin + x axes[0] + y axes[1]. The axes are orthonormal.
struct Plane {
  std::vector<double> origin;
  std::array<std::vector<double>, 2> axes;
  // Each axis's share of the variance of all points.
  std::array<double, 2> variance_share = {};
};

// Returns the plane through the points' mean along their first two principal components. The
// largest entry of each axis is positive. REQUIRES: there is at least one point, and all points
// have the same size, at least 2.
Plane PrincipalPlane(const std::vector<std::vector<double>>& points);

PlanePoint Project(const Plane& plane, const std::vector<double>& point);

// Eigenvalues in descending order, and unit eigenvectors.
struct Eigen {
  std::vector<double> values;
  // vectors[i] belongs to values[i].
  std::vector<std::vector<double>> vectors;
};
// Decomposes a symmetric matrix [n, n] by Jacobi rotations.
Eigen SymmetricEigen(std::vector<std::vector<double>> matrix);

struct Landscape {
  Plane plane;
  PlanePoint teacher;
  // One path per run, with one point per recorded step.
  std::vector<std::vector<PlanePoint>> paths;
  double min_x = 0, max_x = 1, min_y = 0, max_y = 1;
  // [kLandscapeRows, kLandscapeColumns] at evenly spaced nodes from (min_x, min_y) to (max_x,
  // max_y).
  std::vector<std::vector<double>> full_kl;
};

inline constexpr int kLandscapeColumns = 97;
inline constexpr int kLandscapeRows = 65;

Landscape MakeLandscape(const Result& result);

}  // namespace taopd::bandit
