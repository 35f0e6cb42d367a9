// Draws the tokens of one step: on the logits' device for sequences that need no more than a
// temperature (NeedsTemperatureOnly), and on the host, in parallel, for the others, whose rows
// alone come there. Both give the same token from the same logits; log-probs may differ in the last
// bit.
//
// Shapes: S rows of logits, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/engine/sampling/sampler.h"
#include "common/engine/scheduling/sequence.h"
#include "kernels/torch/sampling/row_sampling.h"

namespace taopd {

// A sequence and the row of the logits that it samples from, which several may share.
struct DrawTask {
  Sequence* sequence;
  int64_t row;

  int64_t step() const { return static_cast<int64_t>(sequence->generated.ids.size()); }
  const SamplingParams& params() const { return *sequence->request.sampling; }
};

// One sampled token, and what the request wants to know of it.
struct Draw {
  absl::StatusOr<SampledToken> token = SampledToken();
  std::vector<int32_t> top_ids;
  std::vector<float> top_log_probs;
};

// Returns a draw for each task; its token is an error as Sampler::Sample has it. The sequences'
// masks are called, and nothing else of them changes. `sampler` is undefined if the host draws for
// all. No two tasks have the same sequence.
std::vector<Draw> DrawTokens(const at::Tensor& logits_SV, const RowSampler& sampler,
                             const std::vector<DrawTask>& tasks);

}  // namespace taopd
