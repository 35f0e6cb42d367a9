// The numbers of an evaluation, from which responses were right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

struct Interval {
  double low = 0;
  double high = 1;
};

// Wilson's score interval at 95 % for a share of `successes` out of `trials` (Wilson, 1927).
Interval WilsonInterval(double successes, double trials);

// The chance that at least one of k responses, drawn without replacement from n of which c are
// right, is right: 1 - C(n-c, k) / C(n, k), the unbiased estimator of pass@k (Chen et al.,
// "Evaluating Large Language Models Trained on Code", 2021). REQUIRES: 0 <= c <= n, 1 <= k <= n.
double PassAtK(int64_t n, int64_t c, int64_t k);

struct ResponseOutcome {
  bool correct = false;
  std::string extracted;  // empty: no answer found
  bool truncated = false;
  int64_t num_tokens = 0;
};

// Whether the answer that most responses give is right: each extracted answer is a vote, responses
// without one have none, and of equally frequent answers the one that came first wins. Without a
// vote: false.
bool MajorityIsCorrect(const std::vector<ResponseOutcome>& responses);

// 95 % percentile interval of the mean: `num_resamples` means of as many values drawn with
// replacement (Efron, 1979). Each stratum is resampled by itself and the result is the mean over
// strata of their means: one stratum is the plain bootstrap, one for each source gives the interval
// of the macro average. Where all values of all strata are equal the bootstrap says nothing, and
// for shares that are all 0 or all 1 Wilson's interval of that many trials is given. The same seed
// gives the same interval. REQUIRES: no empty stratum.
Interval BootstrapInterval(const std::vector<std::vector<double>>& strata, uint64_t seed,
                           int64_t num_resamples = 2000);

double Mean(const std::vector<double>& values);  // 0 for none

}  // namespace taopd
