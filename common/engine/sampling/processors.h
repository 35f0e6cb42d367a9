// What SamplingParams does to a row of logits before the temperature: masks, bias and penalties, in
// vLLM's order. All functions are thread-safe as far as SamplingParams::mask is.
//
// Shapes: V vocabulary size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sampling/sampling_state.h"

namespace taopd {

// Whether ProcessLogits would do anything before the token of step `step`.
bool ChangesLogits(const SamplingParams& params, const SamplingState* state, int64_t step);

// Changes the row in place. `state` may be null if no parameter looks at the history. mask_words is
// scratch memory. Returns the error of SamplingParams::mask, if any.
absl::Status ProcessLogits(const SamplingParams& params, const SamplingState* state, int64_t step,
                           std::span<float> logits_V, std::vector<uint64_t>* mask_words);

// The fields of the masks that are in use, for an error message: "allowed_token_ids, min_tokens".
std::string NamesOfMasks(const SamplingParams& params);

}  // namespace taopd
