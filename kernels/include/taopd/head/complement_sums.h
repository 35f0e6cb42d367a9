// The sums over the part of a row of logits outside of its support. They give the tail and the
// entropy without cancellation. CPU and CUDA code share this source.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"

namespace taopd {

// Sums over the ids v outside of the support, with x_v = (z_v - reference) scale.
struct ComplementSums {
  double reference = 0;  // finite
  double sum = 0;        // sum of exp(x_v); gives the log-sum-exp
  double sum_x = 0;      // sum of exp(x_v) x_v; gives the mean of scale * z under the softmax
};

// Returns the log-sum-exp of scale * z over the complement, or -inf if the complement is empty.
TAOPD_HOST_DEVICE inline double LogSumOf(const ComplementSums& rest, double scale) {
  return rest.sum == 0 ? NegativeInfinity<double>() : rest.reference * scale + std::log(rest.sum);
}

// Returns the entropy of a row in nats, log_sum_exp - sum_v p_v z_v, from its complement and its
// support. log_p[k] are the log-probs of the support under the full softmax; p[k] is exp(log_p), or
// null if the caller does not have it.
TAOPD_HOST_DEVICE inline double EntropyOfRow(const ComplementSums& rest, double scale,
                                             double log_p_tail, double log_sum_exp,
                                             const double* log_p, const double* p, int32_t k) {
  double entropy = 0;
  if (rest.sum != 0) {
    const double mean_logit = rest.reference * scale + rest.sum_x / rest.sum;
    entropy += std::exp(log_p_tail) * (log_sum_exp - mean_logit);
  }
  for (int32_t j = 0; j < k; ++j) {
    if (log_p[j] == NegativeInfinity<double>()) continue;
    entropy -= (p != nullptr ? p[j] : std::exp(log_p[j])) * log_p[j];
  }
  return entropy < 0 ? 0 : entropy;  // rounding of a one-point distribution; a NaN stays
}

}  // namespace taopd
