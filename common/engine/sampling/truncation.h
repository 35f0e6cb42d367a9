// Truncates a row by min_p, top_k and top_p, and draws from the ids that remain. All three keep an
// upper set: the ids whose logit is above a threshold, and those at the threshold up to some id.
// The row is never sorted. A few ids are collected and sorted. If they do not suffice, a sample of
// the row gives an interval that probably holds the threshold, and the threshold is found among the
// ids in it. A wrong interval only costs time.
//
// If a row has a rest (logit_row.h), V counts its candidates, and a place stands for an id.
//
// Shapes: V vocabulary size, B blocks of WeightRow, L lane maxima of WeightRow::max.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sampling/logit_row.h"

namespace taopd {
namespace cpu {  // kernels/cpu/math/weight_row.h
struct SplitRow;
struct WeightRow;
}  // namespace cpu

// A row of logits with its weights and their sums.
struct WeightedRow {
  std::span<const float> logits_V;
  std::span<const float> weights_V;  // exp((logit - max) / temperature)
  std::span<const float> lane_max_L;
  std::span<const double> block_sums_B;  // sums of the weights
  double total = 0.0;                    // sum of the weights, with those of the rest
  float max = 0.0f;                      // largest logit
  LogitRow::Rest rest;
};

// An upper set.
struct Cut {
  float threshold = -std::numeric_limits<float>::infinity();
  int32_t last_id = std::numeric_limits<int32_t>::max();  // the last id kept at the threshold

  bool Keeps(float logit, int32_t id) const {
    return logit > threshold || (logit == threshold && id <= last_id);
  }
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
class Truncation {
 public:
  explicit Truncation(const cpu::WeightRow& math) : math_(math) {}

  // Determines the ids that the parameters keep. Returns false if the rest may hold one of them.
  // The row must live until the last Draw.
  bool Apply(const WeightedRow& row, const SamplingParams& params);

  // Returns the kept id at which the cumulative sum of the kept weights, in the order of the ids,
  // exceeds uniform times their total. REQUIRES: 0 < uniform < 1.
  int32_t Draw(double uniform) const;

 private:
  // Tries to keep only a few ids, few_ids_, from which Draw then chooses. Returns whether they
  // suffice.
  bool KeepFew(const SamplingParams& params, int64_t top_k);
  void KeepMany(const SamplingParams& params, int64_t top_k);

  // Returns the smallest upper set whose `measure` sums to at least `target`; `total` is the sum
  // over all ids. Sets kept_sums_ to the sums over the set, by block.
  Cut FindCut(const float* measure, double total, double target);
  // Finds an interval low <= t < high that is likely to hold FindCut's threshold.
  void Bracket(const float* measure, double total, double target, float* low, float* high);
  // Narrows the band until it holds at most `max_band` ids or is a single float.
  void Narrow(double target, int64_t max_band, cpu::SplitRow* band, int64_t* num_band);
  // Finds the cut in the band, of which num_band ids are in band_.
  Cut CutInBand(const cpu::SplitRow& band, int64_t num_band, double above, double target);
  // Finds the cut among the ids whose logit equals the single float of the band.
  Cut CutAmongEquals(const cpu::SplitRow& band, double above, double target);
  // Sets kept_sums_ to the weights of cut_.
  void SumKept();

  const cpu::WeightRow& math_;
  WeightedRow row_;
  Cut cut_;
  bool few_ = false;
  std::vector<int32_t> few_ids_;
  // The weight of all ids whose logit is at least few_bound_.
  double few_weight_ = 0.0;
  float few_bound_ = std::numeric_limits<float>::infinity();
  std::vector<double> kept_sums_;  // [B]
  std::vector<double> band_sums_;  // [B]
  std::vector<int32_t> band_;
  std::vector<float> band_logits_, band_measure_;
  std::vector<float> sample_logits_, sample_measure_, sample_squares_;
  std::vector<float> ones_V_;
};

}  // namespace taopd
