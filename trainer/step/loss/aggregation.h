// The weights with which the losses of response positions are summed into the loss of a mini-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/train_config.h"

namespace taopd {

// Returns, for each sequence of a mini-batch, the weight of each of its response tokens in the
// loss. `response_lengths` holds the number of response tokens of each sequence, or 0 for one that
// is masked: it gets the weight 0 and counts in no mean, as in verl. The weights do not depend on
// the micro-batches.
std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths);

}  // namespace taopd
