// The floating-point operations of the student for a step's responses, for perf/mfu.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/model/config/model_config.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Let C(T, R) = SequenceCost be the multiply-adds of a forward pass over T tokens of which R rows
// go through the head (every token with every matrix, and T^2 / 2 pairs of positions in attention).
// A response of R tokens to a prompt of P tokens needs
//
//   6 C(P + R - 1, R)   for training: 2 FLOP per multiply-add forward, 4 backward
//   2 C(P + R - 1, R)   for generation
//
// minus 2 C(P, 0) if the previously generated response has the same prompt, which is then computed
// once. A given response (Rollout::is_given) is only trained on. This is 6 N per trained token and
// 2 N per generated token, where N is the number of weights that a token is multiplied with, plus
// attention. Recomputation in the backward pass, norms, softmax, routers, evaluations and the
// teacher do not count.
double ModelFlops(const ModelConfig& config, const std::vector<Rollout>& rollouts);

// Returns the FLOP/s of a product of two square matrices of that type on this CPU with the threads
// of this process: the best of a few runs, which take about ten milliseconds together.
double MeasurePeakFlops(at::ScalarType dtype);

}  // namespace taopd
