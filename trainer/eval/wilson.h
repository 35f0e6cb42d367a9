// The uncertainty of a share.
#pragma once

namespace taopd {

struct Interval {
  double low = 0;
  double high = 1;
};
// Wilson's score interval at 95 % for a share of `successes` out of `trials` (Wilson, 1927).
Interval WilsonInterval(double successes, double trials);

}  // namespace taopd
