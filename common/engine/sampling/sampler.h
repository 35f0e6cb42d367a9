// Chooses a token from one row of logits, as SamplingParams in engine.h says. The result depends on
// the row, the parameters, the sequence's own history and the step, and on nothing else: it has the
// same bits on every machine, in every batch and on every thread.
//
// Step i of a sequence consumes exactly one uniform number, the i-th of RandomStream(seed): the
// token is where the cumulative sum of the kept weights, in the order of the ids, passes the
// uniform's share of their total.
//
// Shapes: V vocabulary size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sampling/sampling_state.h"

namespace taopd {

struct SampledToken {
  int32_t id = 0;
  // As in GeneratedTokens. What SamplingParams does not ask for is NaN or 0.
  float log_prob = 0.0f;
  float raw_log_prob = 0.0f;
  int32_t rank = 0;
};

// Reuses scratch memory between calls. Not thread-safe: give each thread its own Sampler.
class Sampler {
 public:
  Sampler();

  // Chooses the token of step `step`, counted from 0. The row is not changed. `state` may be null if
  // no parameter looks at the history; its Append is left to the caller. Returns
  //   INTERNAL          the logits hold a NaN or +inf, or only -inf
  //   INVALID_ARGUMENT  the masks, which the message names, forbid every token
  // and any error of SamplingParams::mask.
  // REQUIRES: logits_V is not empty, and `params` is valid (ValidateRequest).
  absl::StatusOr<SampledToken> Sample(std::span<const float> logits_V, const SamplingParams& params,
                                      SamplingState* state, int64_t step);

  // Appends the `num` most probable ids of the last Sample's row and their log-probs to the two
  // vectors, in descending order of logit; ties go to the lower id. The distribution is
  // SamplingParams::top_log_probs_mode's. REQUIRES: the last Sample succeeded with num_log_probs > 0,
  // and its logits still exist.
  void AppendTop(int32_t num, std::vector<int32_t>* ids, std::vector<float>* log_probs);
};

}  // namespace taopd
