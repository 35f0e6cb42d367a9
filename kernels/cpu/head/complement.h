// Splits a row of logits into a few ids and all others, which gives tails without cancellation.
#pragma once

#include <cstdint>

#include "kernels/cpu/math/row_math.h"
#include "taopd/head/complement_sums.h"
#include "taopd/objective/log_math.h"

namespace taopd::cpu {

// Moves the logits of `num` distinct ids to `taken` and puts -inf in their places.
inline void ExtractLogits(const int32_t* ids, int32_t num, float* logits, float* taken) {
  for (int32_t j = 0; j < num; ++j) taken[j] = logits[ids[j]];
  for (int32_t j = 0; j < num; ++j) logits[ids[j]] = NegativeInfinity<float>();
}

// Returns the sums over the rest of a row, exact even if its probability is tiny. max is the
// largest logit of the rest (RowMath::max).
inline ComplementSums SumBelow(const RowMath& math, float max, const float* logits, int64_t n,
                               float scale) {
  // If all are -inf, the rest is empty and the sums are zero whatever the reference is. A row of
  // NaN also has this maximum.
  const float reference = max == NegativeInfinity<float>() ? 0.0f : max;
  const ExpSums sums = math.sum_exp(logits, n, reference, scale);
  return {reference, sums.sum_exp, sums.sum_exp_x};
}

}  // namespace taopd::cpu
