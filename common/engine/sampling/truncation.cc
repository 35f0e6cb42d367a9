#include "common/engine/sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/engine/sampling/top_ids.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kHighest = std::numeric_limits<float>::infinity();

// top_p tries this many ids before it examines the whole row. In most rows of language models fewer
// ids hold the mass.
constexpr int64_t kFirstFew = 64;
// The largest top_k for which the ids are collected and sorted.
constexpr int64_t kMostFew = 512;
// The sample takes kSampleGroup of every kSampleStride numbers.
constexpr int64_t kSampleGroup = 4;
constexpr int64_t kSampleStride = 256;
// Half of the interval, in standard deviations of the sample's sum.
constexpr double kBracketDeviations = 4.0;

double SumOf(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

Cut Smaller(const Cut& a, const Cut& b) {
  if (a.threshold != b.threshold) return a.threshold > b.threshold ? a : b;
  return a.last_id < b.last_id ? a : b;
}

// Returns the smallest bound that no id of the rest reaches.
float BoundAboveRest(const LogitRow::Rest& rest) {
  return rest.max < kLowest ? rest.max : NextAbove(rest.max);
}

}  // namespace

bool IsTruncated(const SamplingParams& params, int64_t vocab_size) {
  return params.min_p > 0.0f || params.top_p < 1.0f ||
         (params.top_k > 0 && params.top_k < vocab_size);
}

bool Truncation::Apply(const WeightedRow& row, const SamplingParams& params) {
  row_ = row;
  cut_ = Cut();
  few_bound_ = kHighest;
  few_weight_ = 0.0;
  if (params.min_p > 0.0f) {
    const double least = row.max + static_cast<double>(params.temperature) *
                                       std::log(static_cast<double>(params.min_p));
    cut_.threshold = static_cast<float>(std::max(least, static_cast<double>(kLowest)));
  }
  const int64_t vocab_size = static_cast<int64_t>(row.logits_V.size()) + row.rest.size;
  const int64_t top_k = params.top_k > 0 && params.top_k < vocab_size ? params.top_k : 0;
  few_ = KeepFew(params, top_k);
  if (few_ || row.rest.size > 0) return few_;
  KeepMany(params, top_k);
  return true;
}

bool Truncation::KeepFew(const SamplingParams& params, int64_t top_k) {
  const bool has_rest = row_.rest.size > 0;
  if (top_k > kMostFew || (!has_rest && top_k == 0 && params.top_p >= 1.0f)) return false;
  float bound = has_rest ? BoundAboveRest(row_.rest)
                         : BoundOfTop(row_.lane_max_L, top_k > 0 ? top_k : kFirstFew);
  // If true, the collected ids are all that min_p leaves.
  const bool complete = bound <= cut_.threshold;
  if (complete) bound = cut_.threshold;
  if (!CollectAtLeast(row_.logits_V, row_.lane_max_L, bound, 8 * kMostFew, &few_ids_)) return false;
  SortByLogit(row_.logits_V, &few_ids_);
  if (!complete && static_cast<int64_t>(few_ids_.size()) < top_k) return false;
  if (!complete && top_k == 0 && params.top_p >= 1.0f) return false;
  if (top_k > 0 && static_cast<int64_t>(few_ids_.size()) > top_k) few_ids_.resize(top_k);
  double weight = 0.0;
  for (const int32_t id : few_ids_) weight += row_.weights_V[id];
  if (params.top_p < 1.0f) {
    double before = weight;  // the weight that min_p and top_k keep
    if (top_k == 0 && !complete) {
      few_bound_ = bound;
      few_weight_ = weight;
      before = row_.total;
      if (cut_.threshold > -kHighest) {
        if (has_rest) return false;
        before = math_.weight_at_least(row_.logits_V.data(), row_.weights_V.data(),
                                       static_cast<int64_t>(row_.logits_V.size()), cut_.threshold);
      }
    }
    const double target = params.top_p * before;
    if (weight < target && top_k == 0 && !complete) return false;
    double cumulative = 0.0;
    size_t num_kept = 0;
    while (num_kept < few_ids_.size() && cumulative < target)
      cumulative += row_.weights_V[few_ids_[num_kept++]];
    few_ids_.resize(num_kept);
  }
  std::sort(few_ids_.begin(), few_ids_.end());
  return true;
}

void Truncation::KeepMany(const SamplingParams& params, int64_t top_k) {
  const auto vocab_size = static_cast<int64_t>(row_.logits_V.size());
  if (top_k > 0) {
    ones_V_.assign(vocab_size, 1.0f);
    const Cut of_top_k =
        FindCut(ones_V_.data(), static_cast<double>(vocab_size), static_cast<double>(top_k));
    cut_ = Smaller(cut_, of_top_k);
  }
  if (params.top_p >= 1.0f) return SumKept();
  const bool is_whole = cut_.threshold == -kHighest;
  if (!is_whole) SumKept();
  const double before = is_whole ? row_.total : SumOf(kept_sums_);
  const Cut of_top_p = FindCut(row_.weights_V.data(), row_.total, params.top_p * before);
  const Cut both = Smaller(cut_, of_top_p);
  const bool same = both.threshold == of_top_p.threshold && both.last_id == of_top_p.last_id;
  cut_ = both;
  if (!same) SumKept();
}

Cut Truncation::FindCut(const float* measure, double total, double target) {
  const auto vocab_size = static_cast<int64_t>(row_.logits_V.size());
  const int64_t max_band = std::max<int64_t>(vocab_size / 8, 4 * cpu::kWeightBlock);
  kept_sums_.resize(row_.block_sums_B.size());
  band_sums_.resize(row_.block_sums_B.size());
  band_.resize(max_band + cpu::kWeightLanes);
  cpu::SplitRow band{row_.logits_V.data(), measure,           vocab_size,   kLowest, kHighest,
                     kept_sums_.data(),    band_sums_.data(), band_.data(), max_band};
  Bracket(measure, total, target, &band.low, &band.high);
  int64_t num_band = math_.split(band);
  double above = SumOf(kept_sums_);
  if (above >= target) {
    band.low = band.high;
    band.high = kHighest;
    num_band = math_.split(band);
  } else if (above + SumOf(band_sums_) < target) {
    band.high = band.low;
    band.low = kLowest;
    num_band = math_.split(band);
  }
  if (num_band > max_band) Narrow(target, max_band, &band, &num_band);
  above = SumOf(kept_sums_);
  if (above >= target) return {band.high, std::numeric_limits<int32_t>::max()};
  return num_band <= max_band ? CutInBand(band, num_band, above, target)
                              : CutAmongEquals(band, above, target);
}

void Truncation::Narrow(double target, int64_t max_band, cpu::SplitRow* band, int64_t* num_band) {
  constexpr int kHalvingsPerSplit = 4;
  while (*num_band > max_band && NextAbove(band->low) < band->high) {
    for (int i = 0; i < kHalvingsPerSplit && NextAbove(band->low) < band->high; ++i) {
      const float middle = MiddleFloat(band->low, band->high);
      const bool reaches = math_.weight_at_least(band->z, band->w, band->n, middle) >= target;
      (reaches ? band->low : band->high) = middle;
    }
    *num_band = math_.split(*band);
  }
}

Cut Truncation::CutInBand(const cpu::SplitRow& band, int64_t num_band, double above,
                          double target) {
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
    kept_sums_[band_[i] / cpu::kWeightBlock] += band_measure_[i];
  }
  cut.last_id = -1;
  for (int64_t i = 0; i < num_band && cumulative < target; ++i) {
    if (band_logits_[i] != cut.threshold) continue;
    cumulative += band_measure_[i];
    kept_sums_[band_[i] / cpu::kWeightBlock] += band_measure_[i];
    cut.last_id = band_[i];
  }
  return cut;
}

Cut Truncation::CutAmongEquals(const cpu::SplitRow& band, double above, double target) {
  Cut cut;
  cut.threshold = band.low;
  cut.last_id = -1;
  double cumulative = above;
  for (size_t b = 0; b < band_sums_.size() && cumulative < target; ++b) {
    const int64_t begin = static_cast<int64_t>(b) * cpu::kWeightBlock;
    const int64_t end = std::min(band.n, begin + cpu::kWeightBlock);
    if (cumulative + band_sums_[b] < target) {
      cumulative += band_sums_[b];
      kept_sums_[b] += band_sums_[b];
      cut.last_id = static_cast<int32_t>(end - 1);
      continue;
    }
    for (int64_t v = begin; v < end && cumulative < target; ++v) {
      if (band.z[v] != cut.threshold) continue;
      cumulative += band.w[v];
      kept_sums_[b] += band.w[v];
      cut.last_id = static_cast<int32_t>(v);
    }
  }
  return cut;
}

void Truncation::Bracket(const float* measure, double total, double target, float* low,
                         float* high) {
  const auto vocab_size = static_cast<int64_t>(row_.logits_V.size());
  if (vocab_size <= 4 * cpu::kWeightBlock) return;  // the whole row is the band
  sample_logits_.clear();
  sample_measure_.clear();
  for (int64_t v = 0; v + kSampleGroup <= vocab_size; v += kSampleStride) {
    for (int64_t i = v; i < v + kSampleGroup; ++i) {
      sample_logits_.push_back(row_.logits_V[i]);
      sample_measure_.push_back(measure[i]);
    }
  }
  const auto sample_size = static_cast<int64_t>(sample_logits_.size());
  sample_squares_.resize(sample_size);
  for (int64_t i = 0; i < sample_size; ++i)
    sample_squares_[i] = sample_measure_[i] * sample_measure_[i];
  const double factor = static_cast<double>(vocab_size) / static_cast<double>(sample_size);

  const bool knows_few = measure == row_.weights_V.data();
  const float few_bound = knows_few ? few_bound_ : kHighest;
  const double few_weight = knows_few ? few_weight_ : 0.0;
  const auto in_sample = [&](const std::vector<float>& of, float threshold) {
    return math_.weight_at_least(sample_logits_.data(), of.data(), sample_size, threshold);
  };
  // Estimate the sum from the side on which the sample is more accurate.
  const bool from_above = target - few_weight <= total - target;
  const double sample_few = in_sample(sample_measure_, few_bound);
  const double sample_total = in_sample(sample_measure_, kLowest);
  const auto estimate = [&](float threshold) {
    const double sum = in_sample(sample_measure_, threshold);
    return from_above ? few_weight + factor * (sum - sample_few)
                      : total - factor * (sample_total - sum);
  };
  const float upper = NextAbove(std::min(few_bound, row_.max));
  const auto largest = [&](double wanted) {
    return LargestThreshold(kLowest, upper, [&](float t) { return estimate(t) >= wanted; });
  };
  const float middle = largest(target);
  const double squares = in_sample(sample_squares_, middle);
  const double variance = from_above ? squares - in_sample(sample_squares_, few_bound)
                                     : in_sample(sample_squares_, kLowest) - squares;
  const double margin = kBracketDeviations * factor * std::sqrt(std::max(variance, 0.0));
  *low = largest(target + margin);
  *high = NextAbove(largest(target - margin));
}

void Truncation::SumKept() {
  const auto vocab_size = static_cast<int64_t>(row_.logits_V.size());
  kept_sums_.resize(row_.block_sums_B.size());
  band_sums_.resize(row_.block_sums_B.size());
  if (cut_.threshold == -kHighest) {
    kept_sums_.assign(row_.block_sums_B.begin(), row_.block_sums_B.end());
    return;
  }
  band_.resize(cpu::kWeightLanes);
  math_.split({row_.logits_V.data(), row_.weights_V.data(), vocab_size, cut_.threshold,
               NextAbove(cut_.threshold), kept_sums_.data(), band_sums_.data(), band_.data(), 0});
  for (size_t b = 0; b < kept_sums_.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * cpu::kWeightBlock;
    const int64_t end = std::min(vocab_size, begin + cpu::kWeightBlock);
    if (cut_.last_id >= end - 1) {
      kept_sums_[b] += band_sums_[b];
      continue;
    }
    for (int64_t v = begin; v <= cut_.last_id; ++v) {
      if (row_.logits_V[v] == cut_.threshold) kept_sums_[b] += row_.weights_V[v];
    }
  }
}

int32_t Truncation::Draw(double uniform) const {
  if (few_) {
    double total = 0.0;
    for (const int32_t id : few_ids_) total += row_.weights_V[id];
    double cumulative = 0.0;
    int32_t chosen = few_ids_.front();
    for (const int32_t id : few_ids_) {
      if (row_.weights_V[id] == 0.0f) continue;
      cumulative += row_.weights_V[id];
      chosen = id;
      if (cumulative > uniform * total) break;
    }
    return chosen;
  }
  const BlockPlace place = FindBlock(kept_sums_, uniform);
  const int64_t begin = place.block * cpu::kWeightBlock;
  const auto vocab_size = static_cast<int64_t>(row_.logits_V.size());
  const int64_t num = std::min(vocab_size - begin, cpu::kWeightBlock);
  return DrawInBlock(place, row_.logits_V.subspan(begin, num), row_.weights_V.subspan(begin, num),
                     cut_);
}

BlockPlace FindBlock(std::span<const double> sums_B, double uniform) {
  BlockPlace place;
  place.target = uniform * SumOf(sums_B);
  double cumulative = 0.0;
  for (size_t b = 0; b < sums_B.size(); ++b) {
    if (sums_B[b] == 0.0) continue;
    // The last nonempty block stands if rounding lifts the target to the total.
    place.block = static_cast<int64_t>(b);
    place.before = cumulative;
    cumulative += sums_B[b];
    if (cumulative > place.target) break;
  }
  return place;
}

int32_t DrawInBlock(const BlockPlace& place, std::span<const float> logits,
                    std::span<const float> weights, const Cut& cut) {
  const auto first_id = static_cast<int32_t>(place.block * cpu::kWeightBlock);
  double cumulative = place.before;
  int32_t chosen = first_id;
  for (size_t i = 0; i < logits.size(); ++i) {
    const int32_t id = first_id + static_cast<int32_t>(i);
    if (weights[i] == 0.0f || !cut.Keeps(logits[i], id)) continue;
    cumulative += weights[i];
    chosen = id;
    if (cumulative > place.target) break;
  }
  return chosen;
}

}  // namespace taopd
