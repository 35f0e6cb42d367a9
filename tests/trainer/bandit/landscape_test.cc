// Tests of the principal components and the projected landscape.
#include "trainer/bandit/landscape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace taopd::bandit {
namespace {

TEST(SymmetricEigen, DecomposesRandomMatrices) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (size_t n : {1u, 2u, 5u, 30u}) {
    std::vector<std::vector<double>> matrix(n, std::vector<double>(n));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) matrix[i][j] = matrix[j][i] = normal(random);
    }
    const Eigen eigen = SymmetricEigen(matrix);
    for (size_t e = 0; e < n; ++e) {
      double length = 0;
      for (size_t i = 0; i < n; ++i) {
        double product = 0;
        for (size_t j = 0; j < n; ++j) product += matrix[i][j] * eigen.vectors[e][j];
        EXPECT_NEAR(product, eigen.values[e] * eigen.vectors[e][i], 1e-12) << "n " << n;
        length += eigen.vectors[e][i] * eigen.vectors[e][i];
      }
      EXPECT_NEAR(length, 1, 1e-12);
      if (e > 0) {
        EXPECT_GE(eigen.values[e - 1], eigen.values[e]);
      }
    }
  }
}

TEST(PrincipalPlane, FindsThePlaneOfPointsThatLieInOne) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> points;
  for (int i = 0; i < 50; ++i) {
    const double a = 3 * normal(random), b = normal(random);
    points.push_back({1 + a, 2 + b, 3 - b, 4 + a});
  }
  const Plane plane = PrincipalPlane(points);
  EXPECT_NEAR(plane.variance_share[0] + plane.variance_share[1], 1, 1e-12);
  EXPECT_GT(plane.variance_share[0], 0.5);
  for (const std::vector<double>& axis : plane.axes) {
    const auto [lowest, highest] = std::minmax_element(axis.begin(), axis.end());
    EXPECT_GT(*highest, -*lowest - 1e-9) << "the largest entry is positive";
  }
  for (const auto& point : points) {
    const PlanePoint at = Project(plane, point);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(plane.origin[i] + at.x * plane.axes[0][i] + at.y * plane.axes[1][i], point[i],
                  1e-12);
    }
  }
}

TEST(Landscape, HoldsEveryPathAndTheTeacher) {
  Options options;
  options.steps = 2000;
  const Result result = RunBandit({"full", "normalized"}, options).value();
  const Landscape landscape = MakeLandscape(result);
  ASSERT_EQ(landscape.paths.size(), 2u);
  const auto inside = [&](const PlanePoint& point) {
    return point.x > landscape.min_x && point.x < landscape.max_x && point.y > landscape.min_y &&
           point.y < landscape.max_y;
  };
  EXPECT_TRUE(inside(landscape.teacher));
  for (const auto& path : landscape.paths) {
    EXPECT_EQ(path.size(), 21u);
    for (const PlanePoint& point : path) EXPECT_TRUE(inside(point));
  }
  // The student that learns the whole distribution ends nearer to the teacher.
  const auto distance = [&](const PlanePoint& point) {
    return std::hypot(point.x - landscape.teacher.x, point.y - landscape.teacher.y);
  };
  EXPECT_LT(distance(landscape.paths[0].back()), distance(landscape.paths[1].back()));
  ASSERT_EQ(landscape.full_kl.size(), static_cast<size_t>(kLandscapeRows));
  for (const auto& row : landscape.full_kl) {
    ASSERT_EQ(row.size(), static_cast<size_t>(kLandscapeColumns));
    for (double kl : row) EXPECT_TRUE(std::isfinite(kl) && kl >= 0);
  }
}

}  // namespace
}  // namespace taopd::bandit
