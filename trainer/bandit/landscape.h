// The bandit's trajectories over the landscape of the full-vocabulary reverse KL (paper, figure
// "Learning dynamics of different OPD objectives"): all logits of all runs and the teacher's,
// centred (a shift of all logits changes no policy), projected onto their first two principal
// components, and the KL of the policies on that plane.
#pragma once

#include <array>
#include <vector>

#include "trainer/bandit/bandit.h"

namespace taopd {

struct PlanePoint {
  double x = 0, y = 0;
};

// origin + x axes[0] + y axes[1]; the axes are orthonormal.
struct Plane {
  std::vector<double> origin;
  std::array<std::vector<double>, 2> axes;
  std::array<double, 2> variance_share = {};  // of all the points' variance, each axis
};

// The plane through the points' mean along their two principal components, each with its largest
// entry positive. REQUIRES: at least one point, all of one size of at least 2.
Plane PrincipalPlane(const std::vector<std::vector<double>>& points);

PlanePoint Project(const Plane& plane, const std::vector<double>& point);

// Eigenvalues, falling, and unit eigenvectors of a symmetric matrix [n][n] by Jacobi rotations.
struct Eigen {
  std::vector<double> values;
  std::vector<std::vector<double>> vectors;  // vectors[i] belongs to values[i]
};
Eigen SymmetricEigen(std::vector<std::vector<double>> matrix);

struct Landscape {
  Plane plane;
  PlanePoint teacher;
  std::vector<std::vector<PlanePoint>> paths;  // one a run, one point a recorded step
  double min_x = 0, max_x = 1, min_y = 0, max_y = 1;
  // full_kl[row][column] at evenly spaced nodes from (min_x, min_y) to (max_x, max_y).
  std::vector<std::vector<double>> full_kl;
};

inline constexpr int kLandscapeColumns = 97;
inline constexpr int kLandscapeRows = 65;

Landscape MakeLandscape(const BanditResult& result);

}  // namespace taopd
