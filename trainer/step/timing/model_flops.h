// The floating-point operations that a step's responses need of the student, for perf/mfu.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/model/config/model_config.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// With C(T, R) = SequenceCost, the multiply-adds of a forward pass over T tokens of which R rows go
// through the head (a token's share of every matrix, and T^2 / 2 pairs of positions in attention),
// a response of R tokens to a prompt of P tokens needs
//
//   6 C(P + R - 1, R)   to be trained on: 2 FLOP a multiply-add forward, 4 backward
//   2 C(P + R - 1, R)   to be generated
//
// less 2 C(P, 0) where the response before it has the same prompt, which is then computed once.
// That is 6 N per trained token and 2 N per generated one, with N the weights that a token meets,
// and attention. What is computed again in the backward pass does not count, nor do norms, softmax,
// routers, evaluations and the teacher.
double ModelFlops(const ModelConfig& config, const std::vector<Rollout>& rollouts);

// The FLOP/s of a product of two square matrices of that type on this CPU, with the threads of this
// process: the best of a few, some ten milliseconds in all.
double MeasurePeakFlops(at::ScalarType dtype);

}  // namespace taopd
