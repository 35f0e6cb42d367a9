// The distance between the log-probs of two engines on the sampled tokens: |behavior - own|. A
// mismatch of the engine that generates and the one that trains looks like a policy that is off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace taopd {

// Sums and counts, which can be added over ranks. Not thread-safe.
struct LogProbGaps {
  // Bin 0 is for gaps below kSmallest; of the others, kBinsPerDecade cover a factor of 10.
  static constexpr double kSmallest = 1e-7;
  static constexpr int kBinsPerDecade = 16;
  static constexpr int kNumBins = 9 * kBinsPerDecade + 1;

  double sum = 0;
  int64_t counts[kNumBins] = {};

  void Add(double gap) {
    const double size = std::abs(gap);
    sum += size;
    // A gap that is not a number is as large as any.
    const double bin = size < kSmallest ? 0 : std::log10(size / kSmallest) * kBinsPerDecade + 1;
    ++counts[bin < kNumBins ? static_cast<int>(bin) : kNumBins - 1];
  }
  // Returns the upper edge of the quantile's bin, which is at most 16 % above the quantile, or
  // 0 for gaps below kSmallest. NaN if there are none.
  double Quantile(double share) const {
    int64_t num = 0;
    for (const int64_t count : counts) num += count;
    if (num == 0) return NAN;
    const double rank = share * static_cast<double>(num);
    int64_t seen = 0;
    for (int bin = 0; bin < kNumBins; ++bin) {
      seen += counts[bin];
      if (static_cast<double>(seen) < rank) continue;
      return bin == 0 ? 0 : kSmallest * std::pow(10.0, static_cast<double>(bin) / kBinsPerDecade);
    }
    return NAN;
  }
};

}  // namespace taopd
