// Applies masks, bias and penalties of SamplingParams to a row of logits, in vLLM's order, before
// the temperature. All functions are thread-safe if SamplingParams::mask is.
//
// Shapes: N places of a row (logit_row.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/engine/engine_request.h"
#include "common/engine/sampling/sampling_state.h"

namespace taopd {

// Returns whether ProcessLogits would change anything before the token of step `step`.
bool ChangesLogits(const SamplingParams& params, const SamplingState* state, int64_t step);

// Returns the ids that the parameters, apart from a mask, concern. ProcessLogits changes no other
// logits, except that allowed_token_ids forbids all others. Ids may repeat.
std::vector<int32_t> ListedIds(const SamplingParams& params, const SamplingState* state,
                               int64_t step);

// Changes the logits of a row in place; ids_N are its LogitRow::ids_N. `state` may be null if no
// parameter depends on the history. mask_words is scratch memory. Returns the error of
// SamplingParams::mask, if any. REQUIRES: ids_N is empty, or there is no mask and ids_N holds
// ListedIds.
absl::Status ProcessLogits(const SamplingParams& params, const SamplingState* state, int64_t step,
                           std::span<const int32_t> ids_N, std::span<float> logits_N,
                           std::vector<uint64_t>* mask_words);

// Returns the names of the masks in use for an error message: "allowed_token_ids, min_tokens".
std::string NamesOfMasks(const SamplingParams& params);

}  // namespace taopd
