// Evens out the work of the shares of a mini-batch (trainer/dist/shares.h): who generates a
// response does not know how long it will be, and a mini-batch takes as long as its slowest rank.
//
// Everything here depends on the sequences alone, so all ranks come to the same result, whatever
// their number. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

// About how many products a forward pass takes over a sequence of `num_tokens` tokens of which
// `num_rows` are response tokens: the matrices that a token meets, attention with the square of the
// length, the head for the response.
double SequenceCost(const ModelConfig& config, int64_t num_tokens, int64_t num_rows);

// Moves sequences from the share with the highest cost to the one with the lowest, alone or in
// exchange for a cheaper one, as long as that lowers the highest by more than a hundredth of the
// mean. `shares` are lists of sequences, costs[i] is that of sequence i. Returns the shares with
// their sequences in ascending order; a share that has a sequence keeps one.
std::vector<std::vector<int64_t>> BalanceShares(std::vector<std::vector<int64_t>> shares,
                                                const std::vector<double>& costs);

}  // namespace taopd
