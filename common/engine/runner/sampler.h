// Chooses a token from one row of logits. Plain loops over fp32 logits, sums in double, in a fixed
// order: the result depends on the row, the parameters and the step, and on nothing else.
//
// Step i of a sequence uses exactly one uniform number, the i-th of RandomStream(seed).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/engine.h"

namespace taopd {

struct SampledToken {
  int32_t id = 0;
  float log_prob =
      0.0f;  // under softmax(logits / temperature), before top-k and top-p (see GeneratedTokens)
};

// Keeps scratch memory between calls; use one a thread.
class Sampler {
 public:
  // INTERNAL when the logits hold a NaN, +inf, or nothing but -inf. REQUIRES: logits_V is not
  // empty, `params` is valid (ValidateRequest).
  absl::StatusOr<SampledToken> Sample(std::span<const float> logits_V, const SamplingParams& params,
                                      int64_t step);

  // The `num` most probable ids of the row given to the last Sample, by falling logit, ties by
  // lowest id, appended to the two vectors. REQUIRES: the last Sample succeeded and its logits
  // still exist.
  void AppendTop(int32_t num, std::vector<int32_t>* ids, std::vector<float>* log_probs);

 private:
  int32_t DrawFromAll(double uniform) const;
  int32_t DrawFromTruncated(const SamplingParams& params, double uniform);
  // The first `num` of order_ become the most probable ids, sorted.
  void SortTop(int64_t num);
  float LogProb(int32_t id) const;

  std::span<const float> logits_V_;
  double max_logit_ = 0.0;
  double temperature_ = 1.0;  // of the log-probs: 1 when greedy
  double sum_ = 0.0;          // of weights_V_
  double log_sum_ = 0.0;
  std::vector<float> weights_V_;  // exp((logit - max) / temperature)
  std::vector<int32_t> order_V_;
};

}  // namespace taopd
