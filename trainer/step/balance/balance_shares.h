// Balances the work of a mini-batch's shares (trainer/dist/shares.h). The lengths of responses are
// not known when they are assigned, and a mini-batch takes as long as its slowest rank.
//
// The result depends only on the sequences, so all ranks compute the same, whatever their number.
// It does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

// Returns the approximate number of multiply-adds of a forward pass over a sequence of `num_tokens`
// tokens, of which `num_rows` go through the head. Attention costs the square of the length.
double SequenceCost(const ModelConfig& config, int64_t num_tokens, int64_t num_rows);

// Moves sequences from the share with the highest cost to the one with the lowest, alone or in
// exchange for a cheaper one, as long as this lowers the highest cost by more than a hundredth of
// the mean. `shares` are lists of sequences, and costs[i] is the cost of sequence i. Returns the
// shares with their sequences in ascending order. A share with sequences keeps at least one.
std::vector<std::vector<int64_t>> BalanceShares(std::vector<std::vector<int64_t>> shares,
                                                const std::vector<double>& costs);

}  // namespace taopd
