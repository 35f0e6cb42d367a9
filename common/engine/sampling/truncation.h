// Truncates a row by min_p, top_k and top_p, and draws from what they leave. All three keep an
// upper set: the ids whose logit is above a threshold, and of the ids at the threshold those up to
// some id. The row is never sorted. A few ids are collected and sorted; if they do not suffice, a
// sample of the row gives an interval that holds the threshold, and the threshold is found among
// the ids in it. A wrong interval costs time and nothing else.
//
// Shapes: V vocabulary size, B blocks of WeightRow, L lane maxima of WeightRow::max.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {

// A row and what is known about it.
struct WeightedRow {
  std::span<const float> logits_V;
  std::span<const float> weights_V;  // exp((logit - max) / temperature)
  std::span<const float> lane_max_L;
  std::span<const double> block_sums_B;  // of the weights
  double total = 0.0;                    // of the weights
  float max = 0.0f;                      // of the logits
};

// An upper set.
struct Cut {
  float threshold = -std::numeric_limits<float>::infinity();
  int32_t last_id = std::numeric_limits<int32_t>::max();  // the last one at the threshold

  bool Keeps(float logit, int32_t id) const {
    return logit > threshold || (logit == threshold && id <= last_id);
  }
};

// Where a draw falls: in which block, and the cumulative sum before the block.
struct BlockPlace {
  int64_t block = 0;
  double before = 0.0;
  double target = 0.0;  // the cumulative sum to pass
};

// The block in which the cumulative sum passes uniform times the total. 0 < uniform < 1
BlockPlace FindBlock(std::span<const double> sums_B, double uniform);

// The kept id at which the cumulative sum passes the target. The spans cover the block.
int32_t DrawInBlock(const BlockPlace& place, std::span<const float> logits,
                    std::span<const float> weights, const Cut& cut);

// Reuses scratch memory between calls. Not thread-safe.
class Truncation {
 public:
  explicit Truncation(const cpu::WeightRow& math) : math_(math) {}

  // Determines what the parameters keep. The row must live until the last Draw.
  void Apply(const WeightedRow& row, const SamplingParams& params);

  // The kept id at which the cumulative sum of the kept weights, in the order of the ids, passes
  // uniform times their total. 0 < uniform < 1
  int32_t Draw(double uniform) const;

 private:
  // Tries with a few ids, which Draw then takes from few_ids_.
  bool KeepFew(const SamplingParams& params, int64_t top_k);
  void KeepMany(const SamplingParams& params, int64_t top_k);

  // The smallest upper set whose `measure` sums to at least `target`; `total` is the sum of all.
  // Sets kept_sums_ to that of the set, by block.
  Cut FindCut(const float* measure, double total, double target);
  // An interval low <= t < high that is likely to hold FindCut's threshold.
  void Bracket(const float* measure, double total, double target, float* low, float* high);
  // Narrows the band until `max_band` ids are in it, or it is one float.
  void Narrow(double target, int64_t max_band, cpu::SplitRow* band, int64_t* num_band);
  // Finds the cut in the band, of which num_band ids are in band_.
  Cut CutInBand(const cpu::SplitRow& band, int64_t num_band, double above, double target);
  // The same for the ids that equal the one float of the band.
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
