#include "common/engine/sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/engine/sampling/top_ids.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {
namespace {

// top_p tries this many ids before it examines the whole row. In most rows of language models fewer
// ids hold the mass.
constexpr int64_t kTopPTries = 64;
// The largest top_k for which the ids are collected and sorted.
constexpr int64_t kMaxSortedTopK = 512;

double SumOf(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

Cut Smaller(const Cut& a, const Cut& b) {
  if (a.threshold != b.threshold) return a.threshold > b.threshold ? a : b;
  return a.last_id < b.last_id ? a : b;
}

// Returns the smallest bound that no id of the rest reaches.
float BoundAboveRest(const LogitRow::Rest& rest) {
  return rest.max < kLowestFloat ? rest.max : NextAbove(rest.max);
}

// Returns the upper set that min_p keeps.
Cut CutOfMinP(const SamplingParams& params, float max) {
  Cut cut;
  if (params.min_p > 0.0f) {
    const double least =
        max + static_cast<double>(params.temperature) * std::log(static_cast<double>(params.min_p));
    cut.threshold = static_cast<float>(std::max(least, static_cast<double>(kLowestFloat)));
  }
  return cut;
}

// Keeps the first of the sorted ids whose weights sum to at least `target`. Returns false if all of
// them have less.
bool KeepFirst(std::span<const float> weights_V, double target, std::vector<int32_t>* ids) {
  double cumulative = 0.0;
  size_t num_kept = 0;
  while (num_kept < ids->size() && cumulative < target) cumulative += weights_V[(*ids)[num_kept++]];
  ids->resize(num_kept);
  return cumulative >= target;
}

}  // namespace

bool IsTruncated(const SamplingParams& params, int64_t vocab_size) {
  return params.min_p > 0.0f || params.top_p < 1.0f ||
         (params.top_k > 0 && params.top_k < vocab_size);
}

bool RowTruncation::Apply(const WeightedRow& row, const SamplingParams& params) {
  row_ = row;
  top_ = Top{std::move(top_.ids)};  // keeps the vector's memory
  cut_ = CutOfMinP(params, row.max);
  const bool has_rest = row.rest.size > 0;
  const int64_t top_k = params.top_k < row.vocab_size() ? std::max(params.top_k, 0) : 0;
  // min_p alone is a threshold, for which no ids have to be sorted.
  const bool sorts = has_rest || top_k > 0 || params.top_p < 1.0f;
  keeps_few_ = sorts && top_k <= kMaxSortedTopK && KeepFew(top_k, params.top_p);
  if (keeps_few_ || has_rest) return keeps_few_;
  KeepMany(top_k, params.top_p);
  return true;
}

bool RowTruncation::FindTop(int64_t top_k) {
  const float least = row_.rest.size > 0
                          ? BoundAboveRest(row_.rest)
                          : BoundOfTop(row_.lane_max_L, top_k > 0 ? top_k : kTopPTries);
  const float bound = std::max(least, cut_.threshold);
  if (!CollectAtLeast(row_.logits_V, row_.lane_max_L, bound, 8 * kMaxSortedTopK, &top_.ids))
    return false;
  SortByLogit(row_.logits_V, &top_.ids);
  const bool has_top_k = top_k > 0 && static_cast<int64_t>(top_.ids.size()) >= top_k;
  if (has_top_k) top_.ids.resize(top_k);
  top_.is_all = has_top_k || least <= cut_.threshold;
  if (top_k > 0 && !top_.is_all) return false;
  top_.bound = bound;
  for (const int32_t id : top_.ids) top_.weight += row_.weights_V[id];
  return true;
}

std::optional<double> RowTruncation::WeightAfterMinP() const {
  if (cut_.KeepsAll()) return row_.total;
  if (row_.rest.size > 0) return std::nullopt;
  return math_.weight_at_least(row_.logits_V.data(), row_.weights_V.data(),
                               static_cast<int64_t>(row_.logits_V.size()), cut_.threshold);
}

bool RowTruncation::KeepFew(int64_t top_k, float top_p) {
  if (!FindTop(top_k)) return false;
  if (top_p < 1.0f) {
    const std::optional<double> before = top_.is_all ? top_.weight : WeightAfterMinP();
    if (!before || !KeepFirst(row_.weights_V, top_p * *before, &top_.ids)) return false;
  } else if (!top_.is_all) {
    return false;
  }
  std::sort(top_.ids.begin(), top_.ids.end());
  return true;
}

void RowTruncation::KeepMany(int64_t top_k, float top_p) {
  if (top_k > 0) {
    const auto vocab_size = static_cast<double>(row_.logits_V.size());
    ones_V_.assign(row_.logits_V.size(), 1.0f);
    const MeasuredRow counted = {row_.logits_V, ones_V_.data(), vocab_size, row_.max};
    cut_ = Smaller(cut_, search_.Find(counted, static_cast<double>(top_k), &kept_sums_));
  }
  if (top_p >= 1.0f || !cut_.KeepsAll()) SumKept();
  if (top_p >= 1.0f) return;
  const double before = cut_.KeepsAll() ? row_.total : SumOf(kept_sums_);
  const MeasuredRow weighted = {
      row_.logits_V, row_.weights_V.data(), row_.total, row_.max, top_.bound, top_.weight};
  const Cut of_top_p = search_.Find(weighted, top_p * before, &kept_sums_);
  cut_ = Smaller(cut_, of_top_p);
  if (cut_ != of_top_p) SumKept();
}

void RowTruncation::SumKept() {
  if (cut_.KeepsAll()) {
    kept_sums_.assign(row_.block_sums_B.begin(), row_.block_sums_B.end());
  } else {
    search_.Sum(row_.logits_V, row_.weights_V, cut_, &kept_sums_);
  }
}

int32_t RowTruncation::Draw(double uniform) const {
  if (keeps_few_) {
    double total = 0.0;
    for (const int32_t id : top_.ids) total += row_.weights_V[id];
    double cumulative = 0.0;
    int32_t chosen = top_.ids.front();
    for (const int32_t id : top_.ids) {
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
