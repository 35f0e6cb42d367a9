// The split of a row of logits into a few ids and all others, which gives tails without
// cancellation.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/row_math.h"
#include "taopd/complement_sums.h"
#include "taopd/log_math.h"

namespace taopd::cpu {

// Saves the logits of the ids and puts -inf in their place. False when an id occurs twice: each
// place first gets its index j as a bit pattern, which the second occurrence overwrites.
inline bool TakeOut(const int32_t* ids, int32_t num, float* logits, float* taken) {
  for (int32_t j = 0; j < num; ++j) taken[j] = logits[ids[j]];
  for (int32_t j = 0; j < num; ++j) std::memcpy(&logits[ids[j]], &j, sizeof(j));
  bool distinct = true;
  for (int32_t j = 0; j < num; ++j) {
    int32_t found = 0;
    std::memcpy(&found, &logits[ids[j]], sizeof(found));
    distinct = distinct && found == j;
  }
  for (int32_t j = 0; j < num; ++j) logits[ids[j]] = NegativeInfinity<float>();
  return distinct;
}

// The sums over what is left of a row, `max` being its largest logit (RowMath::max), so that they
// are exact however small that part is of the whole. write_exp: z becomes exp((z - reference)
// scale).
inline ComplementSums SumBelow(const RowMath& math, float max, float* logits, int64_t n,
                               float scale, bool write_exp) {
  // All -inf: nothing is left, the sums are zero whatever the reference. (A row of NaN has this
  // maximum, too.)
  const float reference = max == NegativeInfinity<float>() ? 0.0f : max;
  const ExpSums sums = write_exp ? math.exp_in_place(logits, n, reference, scale)
                                 : math.sum_exp(logits, n, reference, scale);
  return {reference, sums.sum_exp, sums.sum_exp_x};
}

}  // namespace taopd::cpu
