#include "trainer/step/loss/micro_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace taopd {

int64_t NumInputTokens(const Rollout& rollout) {
  return static_cast<int64_t>(rollout.prompt_ids.size() + rollout.response_ids.size()) - 1;
}

std::vector<int64_t> MicroBatchEnds(const std::vector<int64_t>& num_tokens, int64_t budget_tokens) {
  const auto n = static_cast<int64_t>(num_tokens.size());
  std::vector<int64_t> sums = {0};
  for (const int64_t tokens : num_tokens) sums.push_back(sums.back() + tokens);
  // For each sequence: the end of the longest run that begins there, and the smallest number of
  // runs for the rest.
  std::vector<int64_t> reach(n), needed(n + 1, 0);
  int64_t end = n;
  for (int64_t i = n - 1; i >= 0; --i) {
    while (end > i + 1 && sums[end] - sums[i] > budget_tokens) --end;
    reach[i] = end;
    needed[i] = 1 + needed[end];
  }
  std::vector<int64_t> ends;
  for (int64_t begin = 0; begin < n; begin = ends.back()) {
    // Among the ends that do not need an additional run, choose the one closest to an equal part of
    // the rest.
    const double part = static_cast<double>(sums[n] - sums[begin]) /
                        static_cast<double>(needed[0] - static_cast<int64_t>(ends.size()));
    const auto distance = [&](int64_t i) {
      return std::abs(static_cast<double>(sums[i] - sums[begin]) - part);
    };
    int64_t best = reach[begin];
    for (int64_t i = reach[begin] - 1; i > begin && needed[i] == needed[reach[begin]]; --i) {
      if (distance(i) <= distance(best)) best = i;
    }
    ends.push_back(best);
  }
  return ends;
}

std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths) {
  const auto num_tokens = static_cast<double>(
      std::accumulate(response_lengths.begin(), response_lengths.end(), int64_t{0}));
  const auto num_sequences = static_cast<double>(
      std::ranges::count_if(response_lengths, [](int64_t length) { return length > 0; }));
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
