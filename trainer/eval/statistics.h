// Statistics of an evaluation: shares of correct responses and their intervals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

struct Interval {
  double low = 0;
  double high = 1;
};

// Returns Wilson's score interval at 95 % for a share of `successes` out of `trials` (Wilson,
// 1927), or [0, 1] if there are no trials.
Interval WilsonInterval(double successes, double trials);

// Returns the probability that at least one of k responses is correct if they are drawn without
// replacement from n responses of which c are correct: 1 - C(n-c, k) / C(n, k). This is the
// unbiased estimator of pass@k (Chen et al., "Evaluating Large Language Models Trained on Code",
// 2021).
// REQUIRES: 0 <= c <= n, 1 <= k <= n.
double PassAtK(int64_t n, int64_t c, int64_t k);

struct ResponseOutcome {
  bool correct = false;
  std::string extracted;  // the answer in the response; empty if the grader found none
  bool truncated = false;
  int64_t num_tokens = 0;  // -1 if unknown
};

// Returns whether the most frequent answer is correct. Each extracted answer is a vote; a response
// without an answer has no vote. Ties go to the answer that came first. Returns false if there is
// no vote.
bool MajorityIsCorrect(const std::vector<ResponseOutcome>& responses);

// Returns the 95 % percentile interval of the mean from `num_resamples` bootstrap resamples (Efron,
// 1979). Each stratum is resampled by itself, and the value of a resample is the mean of the
// strata's means. One stratum gives the plain bootstrap; one stratum per source gives the interval
// of the macro average. If all values are 0 or all are 1, the bootstrap has no spread, and the
// result is Wilson's interval for that many trials. The same seed gives the same interval.
// REQUIRES: no stratum is empty.
Interval BootstrapInterval(const std::vector<std::vector<double>>& strata, uint64_t seed,
                           int64_t num_resamples = 2000);

// Returns 0 if there are no values.
double Mean(const std::vector<double>& values);

}  // namespace taopd
