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

// Appends the rows' numbers to Sequence::score. Parts that ask for the same things are computed
// together; a row's numbers do not depend on it (see Decoder::ScoreRows). A sequence whose logits
// are not finite gets INTERNAL as its status, and the others go on. `workspace_bytes` limits the
// memory of one chunk's logits. Throws c10::Error as LibTorch does. REQUIRES: each part goes on
// where the sequence's score ends, and no sequence has two parts.
void ScoreParts(const std::vector<ScoredPart>& parts, Decoder* decoder, int64_t workspace_bytes);

}  // namespace taopd
