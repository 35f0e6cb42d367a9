// Truncates a row by min_p, top_k and top_p, and draws from the ids that remain. All three keep an
// upper set (cut_search.h). The row is never sorted: a few of its largest ids are collected and
// sorted, and if they do not suffice, the threshold is searched for in the whole row.
//
// For a row with a rest (logit_row.h), V is the number of candidates, and places stand for ids.
//
// Shapes: V vocabulary size, B blocks of WeightRow, L lane maxima of WeightRow::max.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/engine_request.h"
#include "common/engine/sampling/cut_search.h"
#include "common/engine/sampling/logit_row.h"

namespace taopd {

// A row of logits with its weights and their sums.
struct WeightedRow {
  std::span<const float> logits_V;
  std::span<const float> weights_V;  // exp((logit - max) / temperature)
  std::span<const float> lane_max_L;
  std::span<const double> block_sums_B;  // sums of the weights
  double total = 0.0;                    // sum of the weights, with those of the rest
  float max = 0.0f;                      // largest logit
  LogitRow::Rest rest;

  int64_t vocab_size() const { return static_cast<int64_t>(logits_V.size()) + rest.size; }
};

// The block into which a draw falls, and the cumulative sum before the block.
struct BlockPlace {
  int64_t block = 0;
  double before = 0.0;
  double target = 0.0;  // the cumulative sum to pass
};

// Returns the block in which the cumulative sum exceeds uniform times the total. REQUIRES: 0 <
// uniform < 1.
BlockPlace FindBlock(std::span<const double> sums_B, double uniform);

// Returns the kept id at which the cumulative sum exceeds the target. The spans cover the block.
int32_t DrawInBlock(const BlockPlace& place, std::span<const float> logits,
                    std::span<const float> weights, const Cut& cut);

// Returns whether the parameters remove any of the ids.
bool IsTruncated(const SamplingParams& params, int64_t vocab_size);

// Reuses scratch memory between calls. Not thread-safe.
class RowTruncation {
 public:
  explicit RowTruncation(const cpu::WeightRow& math) : math_(math), search_(math) {}

  // Determines the ids that the parameters keep. Returns false if the rest may hold one of them.
  // The row must live until the last Draw.
  bool Apply(const WeightedRow& row, const SamplingParams& params);

  // Returns the kept id at which the cumulative sum of the kept weights, in the order of the ids,
  // exceeds uniform times their total. REQUIRES: 0 < uniform < 1.
  int32_t Draw(double uniform) const;

 private:
  // The ids of a row that are certainly its largest, in descending order of logit; ties go to the
  // lower id.
  struct Top {
    std::vector<int32_t> ids;
    // If true, the ids are all that min_p and top_k leave.
    bool is_all = false;
    // The weight of the ids. Unless top_k has removed some, they are all whose logit is at least
    // `bound`.
    double weight = 0.0;
    float bound = std::numeric_limits<float>::infinity();
  };

  // Sets top_. Returns false if there are too many ids to sort, or if the rest may hold one that
  // top_k leaves.
  bool FindTop(int64_t top_k);
  // Keeps only ids of top_. Returns whether the parameters keep no others.
  bool KeepFew(int64_t top_k, float top_p);
  // Sets cut_ and kept_sums_ by searching the whole row.
  void KeepMany(int64_t top_k, float top_p);
  // Returns the weight of all ids that min_p leaves, or nullopt if the rest may hold one of them.
  std::optional<double> WeightAfterMinP() const;
  // Sets kept_sums_ to the weights of cut_.
  void SumKept();

  const cpu::WeightRow& math_;
  WeightedRow row_;
  Top top_;
  bool keeps_few_ = false;         // the kept ids are top_.ids, in ascending order
  Cut cut_;                        // otherwise, they are this upper set
  std::vector<double> kept_sums_;  // [B], of the weights in cut_
  CutSearch search_;
  std::vector<float> ones_V_;
};

}  // namespace taopd
