// Chooses a token from one row of logits. The result depends on the row, the parameters and the
// step and on nothing else: plain loops over float32 logits accumulate in double, in a fixed order.
//
// Step i of a sequence consumes exactly one uniform number, the i-th of RandomStream(seed).
//
// Shapes: V vocabulary size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/engine.h"

namespace taopd {

struct SampledToken {
  int32_t id = 0;
  // Under softmax(logits / temperature), before top-k and top-p (see GeneratedTokens).
  float log_prob = 0.0f;
};

// Reuses scratch memory between calls. Not thread-safe: give each thread its own Sampler.
class Sampler {
 public:
  // Chooses the token of step `step`, counted from 0. Returns INTERNAL if the logits hold a NaN or
  // +inf, or only -inf. REQUIRES: logits_V is not empty, and `params` is valid (ValidateRequest).
  absl::StatusOr<SampledToken> Sample(std::span<const float> logits_V, const SamplingParams& params,
                                      int64_t step);

  // Appends the `num` most probable ids of the last Sample's row and their log-probs to the two
  // vectors, in descending order of logit; ties go to the lower id. REQUIRES: the last Sample
  // succeeded and its logits still exist.
  void AppendTop(int32_t num, std::vector<int32_t>* ids, std::vector<float>* log_probs);

 private:
  int32_t DrawFromAll(double uniform) const;
  int32_t DrawFromTruncated(const SamplingParams& params, double uniform);
  // Makes the first `num` entries of order_V_ the most probable ids, sorted.
  void SortTop(int64_t num);
  float LogProb(int32_t id) const;

  std::span<const float> logits_V_;
  double max_logit_ = 0.0;
  double temperature_ = 1.0;  // of the log-probs; 1 if greedy
  double sum_ = 0.0;          // of weights_V_
  double log_sum_ = 0.0;
  std::vector<float> weights_V_;  // exp((logit - max) / temperature)
  std::vector<int32_t> order_V_;
};

}  // namespace taopd
