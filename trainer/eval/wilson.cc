#include "trainer/eval/wilson.h"

#include <algorithm>
#include <cmath>

namespace taopd {

Interval WilsonInterval(double successes, double trials) {
  if (trials <= 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5 % point of the standard normal
  const double p = successes / trials;
  const double z2 = kZ * kZ;
  const double center = (p + z2 / (2 * trials)) / (1 + z2 / trials);
  const double half = kZ / (1 + z2 / trials) * std::sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

}  // namespace taopd
