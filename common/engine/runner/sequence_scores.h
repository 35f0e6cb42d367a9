// Computes scores from hidden states, for the rows of several sequences at once.
//
// Shapes: R rows of one part, H hidden size, V vocabulary size.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/engine/scheduling/sequence.h"
#include "common/model/decoder.h"

namespace taopd {

// Scored rows [first_row, first_row + R) of a sequence. hidden_RH predicts the tokens start +
// first_row + r of ScoreParams.
struct ScoredPart {
  Sequence* sequence;
  int64_t first_row;
  at::Tensor hidden_RH;
};

// Appends the rows' numbers to Sequence::score. Parts that ask for the same arrays are computed
// together, which does not change a row's numbers (see Decoder::ScoreRows). A sequence whose logits
// are not finite gets the status INTERNAL, and the other sequences continue. `workspace_bytes`
// limits the memory of one chunk's logits. Throws c10::Error as LibTorch does. REQUIRES: each part
// begins where the sequence's score ends, and no sequence has two parts.
void ScoreParts(const std::vector<ScoredPart>& parts, Decoder* decoder, int64_t workspace_bytes);

}  // namespace taopd
