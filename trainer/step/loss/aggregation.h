// The weights with which the losses of response positions are summed into the loss of a mini-batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The modes and their names are those of verl.
enum class Aggregation { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum };

// Parses "token-mean", "seq-mean-token-mean" or "seq-mean-token-sum". Returns INVALID_ARGUMENT for
// any other name.
absl::StatusOr<Aggregation> ParseAggregation(const std::string& name);

// Returns, for each sequence of a mini-batch, the weight of each of its response tokens in the
// loss. `response_lengths` holds the number of response tokens of each sequence. The weights do not
// depend on the micro-batches.
std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths);

}  // namespace taopd
