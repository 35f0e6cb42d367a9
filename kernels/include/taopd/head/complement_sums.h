// The part of a row of logits that is outside of its support, as two sums: where the tail and the
// entropy come from without cancellation. The same source for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"

namespace taopd {

// log-sum-exp over the complement of the support from sum = sum_v exp((z_v - reference) scale), and
// the mean of scale * z under the complement's own softmax from sum_x, the same sum with a factor
// (z_v - reference) scale.
struct ComplementSums {
  double reference = 0;  // finite
  double sum = 0;
  double sum_x = 0;
};

// Log-sum-exp of scale * z over the complement; -inf where nothing is left.
TAOPD_HOST_DEVICE inline double LogSumOf(const ComplementSums& rest, double scale) {
  return rest.sum == 0 ? NegativeInfinity<double>() : rest.reference * scale + std::log(rest.sum);
}

// Entropy in nats of a row: lse - sum_v p_v z_v, in two parts. log_p[k] is of the full softmax.
TAOPD_HOST_DEVICE inline double EntropyOfRow(const ComplementSums& rest, double scale,
                                             double log_p_tail, double log_sum_exp,
                                             const double* log_p, int32_t k) {
  double entropy = 0;
  if (rest.sum != 0) {
    const double mean_logit = rest.reference * scale + rest.sum_x / rest.sum;
    entropy += std::exp(log_p_tail) * (log_sum_exp - mean_logit);
  }
  for (int32_t j = 0; j < k; ++j) {
    if (log_p[j] != NegativeInfinity<double>()) entropy -= std::exp(log_p[j]) * log_p[j];
  }
  return entropy < 0 ? 0 : entropy;  // rounding of a one-point distribution; a NaN stays
}

}  // namespace taopd
