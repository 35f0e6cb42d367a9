#include "common/engine/sampling/cut_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/engine/sampling/top_ids.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {
namespace {

constexpr float kHighest = std::numeric_limits<float>::infinity();

// The sample takes kSampleGroup of every kSampleStride numbers.
constexpr int64_t kSampleGroup = 4;
constexpr int64_t kSampleStride = 256;
// Half of the interval, in standard deviations of the sample's sum.
constexpr double kBracketDeviations = 4.0;

double SumOfBlocks(const double* sums_B, size_t num_blocks) {
  return std::accumulate(sums_B, sums_B + num_blocks, 0.0);
}

}  // namespace

Cut CutSearch::Find(const MeasuredRow& row, double target, std::vector<double>* sums_B) {
  const auto vocab_size = static_cast<int64_t>(row.logits_V.size());
  const auto num_blocks = static_cast<size_t>(cpu::NumWeightBlocks(vocab_size));
  const int64_t max_band = std::max<int64_t>(vocab_size / 8, 4 * cpu::kWeightBlock);
  sums_B->resize(num_blocks);
  band_sums_.resize(num_blocks);
  band_.resize(max_band + cpu::kWeightLanes);
  cpu::SplitRow band{row.logits_V.data(), row.measure_V,     vocab_size,   kLowestFloat, kHighest,
                     sums_B->data(),      band_sums_.data(), band_.data(), max_band};
  Bracket(row, target, &band.low, &band.high);
  int64_t num_band = math_.split(band);
  double above = SumOfBlocks(band.above_sums, num_blocks);
  if (above >= target) {
    band.low = band.high;
    band.high = kHighest;
    num_band = math_.split(band);
  } else if (above + SumOfBlocks(band.band_sums, num_blocks) < target) {
    band.high = band.low;
    band.low = kLowestFloat;
    num_band = math_.split(band);
  }
  num_band = Narrow(target, num_band, &band);
  above = SumOfBlocks(band.above_sums, num_blocks);
  if (above >= target) return {band.high, std::numeric_limits<int32_t>::max()};
  return num_band <= max_band ? CutInBand(band, num_band, above, target)
                              : CutAmongEquals(band, above, target);
}

int64_t CutSearch::Narrow(double target, int64_t num_band, cpu::SplitRow* band) {
  constexpr int kHalvingsPerSplit = 4;
  while (num_band > band->capacity && NextAbove(band->low) < band->high) {
    for (int i = 0; i < kHalvingsPerSplit && NextAbove(band->low) < band->high; ++i) {
      const float middle = MiddleFloat(band->low, band->high);
      const bool reaches = math_.weight_at_least(band->z, band->w, band->n, middle) >= target;
      (reaches ? band->low : band->high) = middle;
    }
    num_band = math_.split(*band);
  }
  return num_band;
}

Cut CutSearch::CutInBand(const cpu::SplitRow& band, int64_t num_band, double above, double target) {
  band_logits_.resize(num_band);
  band_measure_.resize(num_band);
  for (int64_t i = 0; i < num_band; ++i) {
    band_logits_[i] = band.z[band_[i]];
    band_measure_[i] = band.w[band_[i]];
  }
  const auto weight_at_least = [&](float threshold) {
    return math_.weight_at_least(band_logits_.data(), band_measure_.data(), num_band, threshold);
  };
  Cut cut;
  cut.threshold = LargestThreshold(band.low, band.high,
                                   [&](float t) { return above + weight_at_least(t) >= target; });
  double cumulative = above;
  for (int64_t i = 0; i < num_band; ++i) {
    if (!(band_logits_[i] > cut.threshold)) continue;
    cumulative += band_measure_[i];
    band.above_sums[band_[i] / cpu::kWeightBlock] += band_measure_[i];
  }
  cut.last_id = -1;
  for (int64_t i = 0; i < num_band && cumulative < target; ++i) {
    if (band_logits_[i] != cut.threshold) continue;
    cumulative += band_measure_[i];
    band.above_sums[band_[i] / cpu::kWeightBlock] += band_measure_[i];
    cut.last_id = band_[i];
  }
  return cut;
}

Cut CutSearch::CutAmongEquals(const cpu::SplitRow& band, double above, double target) {
  Cut cut;
  cut.threshold = band.low;
  cut.last_id = -1;
  double cumulative = above;
  for (size_t b = 0; b < band_sums_.size() && cumulative < target; ++b) {
    const int64_t begin = static_cast<int64_t>(b) * cpu::kWeightBlock;
    const int64_t end = std::min(band.n, begin + cpu::kWeightBlock);
    if (cumulative + band_sums_[b] < target) {
      cumulative += band_sums_[b];
      band.above_sums[b] += band_sums_[b];
      cut.last_id = static_cast<int32_t>(end - 1);
      continue;
    }
    for (int64_t v = begin; v < end && cumulative < target; ++v) {
      if (band.z[v] != cut.threshold) continue;
      cumulative += band.w[v];
      band.above_sums[b] += band.w[v];
      cut.last_id = static_cast<int32_t>(v);
    }
  }
  return cut;
}

void CutSearch::Bracket(const MeasuredRow& row, double target, float* low, float* high) {
  const auto vocab_size = static_cast<int64_t>(row.logits_V.size());
  if (vocab_size <= 4 * cpu::kWeightBlock) return;  // the whole row is the band
  sample_logits_.clear();
  sample_measure_.clear();
  for (int64_t v = 0; v + kSampleGroup <= vocab_size; v += kSampleStride) {
    for (int64_t i = v; i < v + kSampleGroup; ++i) {
      sample_logits_.push_back(row.logits_V[i]);
      sample_measure_.push_back(row.measure_V[i]);
    }
  }
  const auto sample_size = static_cast<int64_t>(sample_logits_.size());
  sample_squares_.resize(sample_size);
  for (int64_t i = 0; i < sample_size; ++i)
    sample_squares_[i] = sample_measure_[i] * sample_measure_[i];
  const double factor = static_cast<double>(vocab_size) / static_cast<double>(sample_size);

  const auto in_sample = [&](const std::vector<float>& measure, float threshold) {
    return math_.weight_at_least(sample_logits_.data(), measure.data(), sample_size, threshold);
  };
  // Estimate the sum from the side on which the sample is more accurate.
  const bool from_above = target - row.known_sum <= row.total - target;
  const double sample_known = in_sample(sample_measure_, row.known_bound);
  const double sample_total = in_sample(sample_measure_, kLowestFloat);
  const auto estimate = [&](float threshold) {
    const double sum = in_sample(sample_measure_, threshold);
    return from_above ? row.known_sum + factor * (sum - sample_known)
                      : row.total - factor * (sample_total - sum);
  };
  const float upper = NextAbove(std::min(row.known_bound, row.max));
  const auto largest = [&](double wanted) {
    return LargestThreshold(kLowestFloat, upper, [&](float t) { return estimate(t) >= wanted; });
  };
  const float middle = largest(target);
  const double squares = in_sample(sample_squares_, middle);
  const double variance = from_above ? squares - in_sample(sample_squares_, row.known_bound)
                                     : in_sample(sample_squares_, kLowestFloat) - squares;
  const double margin = kBracketDeviations * factor * std::sqrt(std::max(variance, 0.0));
  *low = largest(target + margin);
  *high = NextAbove(largest(target - margin));
}

void CutSearch::Sum(std::span<const float> logits_V, std::span<const float> weights_V,
                    const Cut& cut, std::vector<double>* sums_B) {
  const auto vocab_size = static_cast<int64_t>(logits_V.size());
  const auto num_blocks = static_cast<size_t>(cpu::NumWeightBlocks(vocab_size));
  sums_B->resize(num_blocks);
  band_sums_.resize(num_blocks);
  band_.resize(cpu::kWeightLanes);
  math_.split({logits_V.data(), weights_V.data(), vocab_size, cut.threshold,
               NextAbove(cut.threshold), sums_B->data(), band_sums_.data(), band_.data(), 0});
  for (size_t b = 0; b < num_blocks; ++b) {
    const int64_t begin = static_cast<int64_t>(b) * cpu::kWeightBlock;
    const int64_t end = std::min(vocab_size, begin + cpu::kWeightBlock);
    if (cut.last_id >= end - 1) {
      (*sums_B)[b] += band_sums_[b];
      continue;
    }
    for (int64_t v = begin; v <= cut.last_id; ++v) {
      if (logits_V[v] == cut.threshold) (*sums_B)[b] += weights_V[v];
    }
  }
}

}  // namespace taopd
