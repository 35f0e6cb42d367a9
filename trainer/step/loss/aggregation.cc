#include "trainer/step/loss/aggregation.h"

#include <algorithm>
#include <numeric>

namespace taopd {

std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths) {
  const auto num_tokens = static_cast<double>(
      std::accumulate(response_lengths.begin(), response_lengths.end(), int64_t{0}));
  const auto num_sequences = static_cast<double>(std::count_if(
      response_lengths.begin(), response_lengths.end(), [](int64_t length) { return length > 0; }));
  std::vector<double> weights;
  weights.reserve(response_lengths.size());
  for (int64_t length : response_lengths) {
    if (length == 0) {
      weights.push_back(0);
      continue;
    }
    switch (aggregation) {
      case Aggregation::kTokenMean:
        weights.push_back(1.0 / num_tokens);
        break;
      case Aggregation::kSeqMeanTokenMean:
        weights.push_back(1.0 / (num_sequences * static_cast<double>(length)));
        break;
      case Aggregation::kSeqMeanTokenSum:
        weights.push_back(1.0 / num_sequences);
        break;
    }
  }
  return weights;
}

}  // namespace taopd
