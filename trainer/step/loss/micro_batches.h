// Cuts a mini-batch into micro-batches, which bound the memory of a forward and backward pass, and
// determines the weight of each response position in the mini-batch's loss.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/train_config.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Returns the number of tokens that the student reads for this rollout: the prompt, and the
// response without its last token, which predicts nothing.
int64_t NumInputTokens(const Rollout& rollout);

// Divides sequences 0..n-1, where sequence i has num_tokens[i] tokens, into runs of consecutive
// sequences with at most `budget_tokens` tokens: as few runs as possible, with about equally many
// tokens. A sequence that exceeds the budget forms a run of its own. Returns the end index of each
// run.
std::vector<int64_t> MicroBatchEnds(const std::vector<int64_t>& num_tokens, int64_t budget_tokens);

// Returns, for each sequence of a mini-batch, the weight of each of its response tokens in the
// loss. `response_lengths` holds the number of response tokens of each sequence, or 0 for one that
// is masked: it gets the weight 0 and counts in no mean, as in verl. The weights do not depend on
// the micro-batches.
std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths);

}  // namespace taopd
