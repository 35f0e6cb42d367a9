// The split of a row of logits into a few ids and all others, which gives tails without
// cancellation.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/row_math.h"
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

// log-sum-exp over a row at 1 / temperature, with its own maximum so that it is exact however small
// the part is of the whole; and what the entropy needs of it.
struct PartOfRow {
  double log_sum_exp = NegativeInfinity<double>();
  double mean_logit = 0;  // under the part's own softmax, in units of the temperature; 0 when empty
  float shift = 0;        // exp_in_place left exp((z - shift) / temperature)
  bool empty = true;
};

// `max` is that of the row (RowMath::max).
inline PartOfRow SumPartBelow(const RowMath& math, float max, float* logits, int64_t n,
                              double temperature, bool write_exp) {
  PartOfRow part;
  const float scale = static_cast<float>(1 / temperature);
  // All -inf: nothing is left, the sums are zero whatever the shift. (A row of NaN has this
  // maximum, too.)
  part.shift = max == NegativeInfinity<float>() ? 0.0f : max;
  const ExpSums sums = write_exp ? math.exp_in_place(logits, n, part.shift, scale)
                                 : math.sum_exp(logits, n, part.shift, scale);
  if (sums.sum_exp == 0) return part;
  part.empty = false;
  const double shift = static_cast<double>(part.shift) * scale;
  part.log_sum_exp = shift + std::log(sums.sum_exp);
  part.mean_logit = shift + sums.sum_exp_x / sums.sum_exp;
  return part;
}

inline PartOfRow SumPart(const RowMath& math, float* logits, int64_t n, double temperature,
                         bool write_exp) {
  return SumPartBelow(math, math.max(logits, n), logits, n, temperature, write_exp);
}

// Entropy in nats of the whole row from its two parts: lse - sum_v p_v z_v. `taken` at 1 /
// temperature.
inline double EntropyOfParts(const PartOfRow& rest, const double* taken, int32_t num,
                             double log_sum_exp) {
  double entropy = 0;
  if (!rest.empty) {
    entropy += std::exp(rest.log_sum_exp - log_sum_exp) * (log_sum_exp - rest.mean_logit);
  }
  for (int32_t j = 0; j < num; ++j) {
    const double log_p = taken[j] - log_sum_exp;
    if (log_p != NegativeInfinity<double>()) entropy -= std::exp(log_p) * log_p;
  }
  return entropy < 0 ? 0 : entropy;  // rounding of a one-point distribution; a NaN stays
}

}  // namespace taopd::cpu
