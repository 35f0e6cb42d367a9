// Draws the tokens of one step: on the logits' device for sequences that need only a temperature
// (NeedsTemperatureOnly), and in parallel on the host for the others. Of a row, the host gets only
// candidates (kernels/torch/sampling/row_candidates.h), except in two cases:
//   The sequence has a mask, a top_k above kTopCandidates, or penalties, bias, bad words,
//   min_tokens and allowed_token_ids that name more than kMaxNamedIds ids.
//   The candidates do not suffice (OUT_OF_RANGE of Sampler::Sample).
// All ways give the same token (sampler.h); log-probs may differ in the last bits.
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

// A sequence and the row of the logits from which it samples. Several sequences may share a row.
struct DrawTask {
  Sequence* sequence;
  int64_t row;

  int64_t step() const { return static_cast<int64_t>(sequence->generated.ids.size()); }
  const SamplingParams& params() const { return *sequence->request.sampling; }
};

// One sampled token and the numbers that the request asks for.
struct Draw {
  absl::StatusOr<SampledToken> token = SampledToken();
  std::vector<int32_t> top_ids;
  std::vector<float> top_log_probs;
};

// Returns a draw for each task; its token may be an error of Sampler::Sample. Calls the sequences'
// masks, and changes nothing else in the sequences. If `sampler` is undefined, the host draws all
// tokens. REQUIRES: no two tasks have the same sequence.
std::vector<Draw> DrawTokens(const at::Tensor& logits_SV, const RowSampler& sampler,
                             const std::vector<DrawTask>& tasks);

}  // namespace taopd
