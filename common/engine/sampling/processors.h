// Applies masks, bias and penalties of SamplingParams to a row of logits, in vLLM's order, before
// the temperature. All functions are thread-safe if SamplingParams::mask is.
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

// Returns whether ProcessLogits would change anything before the token of step `step`.
bool ChangesLogits(const SamplingParams& params, const SamplingState* state, int64_t step);

// Changes the row in place. `state` may be null if no parameter depends on the history. mask_words
// is scratch memory. Returns the error of SamplingParams::mask, if any.
absl::Status ProcessLogits(const SamplingParams& params, const SamplingState* state, int64_t step,
                           std::span<float> logits_V, std::vector<uint64_t>* mask_words);

// Returns the names of the masks in use for an error message: "allowed_token_ids, min_tokens".
std::string NamesOfMasks(const SamplingParams& params);

}  // namespace taopd
