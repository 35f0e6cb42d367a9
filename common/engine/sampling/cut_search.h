// Finds the smallest upper set of a row whose numbers sum to at least a target. An upper set holds
// the ids whose logit is above a threshold, and those at the threshold up to some id. The row is
// never sorted. A sample of the row gives an interval that probably holds the threshold, and the
// threshold is found among the ids in it. A wrong interval only costs time.
//
// Shapes: V places of the row, B blocks of WeightRow (kernels/cpu/math/weight_row.h).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace taopd {
namespace cpu {  // kernels/cpu/math/weight_row.h
struct SplitRow;
struct WeightRow;
}  // namespace cpu

// An upper set.
struct Cut {
  float threshold = -std::numeric_limits<float>::infinity();
  int32_t last_id = std::numeric_limits<int32_t>::max();  // the last id kept at the threshold

  bool Keeps(float logit, int32_t id) const {
    return logit > threshold || (logit == threshold && id <= last_id);
  }
  bool KeepsAll() const { return threshold == -std::numeric_limits<float>::infinity(); }
  bool operator==(const Cut&) const = default;
};

// A row of logits with a measure: a weight of each id, at least 0.
struct MeasuredRow {
  std::span<const float> logits_V;
  const float* measure_V = nullptr;
  double total = 0.0;  // sum of the measure over all ids
  float max = 0.0f;    // largest logit
  // The measure of the ids whose logit is at least `known_bound` sums to `known_sum`.
  float known_bound = std::numeric_limits<float>::infinity();
  double known_sum = 0.0;
};

// Reuses scratch memory between calls. Not thread-safe.
class CutSearch {
 public:
  explicit CutSearch(const cpu::WeightRow& math) : math_(math) {}

  // Returns the smallest upper set whose measure sums to at least `target`. Sets sums_B to the sums
  // over the set, by block.
  Cut Find(const MeasuredRow& row, double target, std::vector<double>* sums_B);
  // Sets sums_B to the weights of a set, summed by block. REQUIRES: it does not hold all ids.
  void Sum(std::span<const float> logits_V, std::span<const float> weights_V, const Cut& cut,
           std::vector<double>* sums_B);

 private:
  // Finds an interval low <= t < high that is likely to hold the threshold.
  void Bracket(const MeasuredRow& row, double target, float* low, float* high);
  // Narrows the band until it holds at most its capacity of ids or is a single float. Returns the
  // number of ids in it.
  int64_t Narrow(double target, int64_t num_band, cpu::SplitRow* band);
  // Finds the cut in the band, whose num_band ids are in band_. `above` is the sum above it.
  Cut CutInBand(const cpu::SplitRow& band, int64_t num_band, double above, double target);
  // Finds the cut among the ids whose logit equals the single float of the band.
  Cut CutAmongEquals(const cpu::SplitRow& band, double above, double target);

  const cpu::WeightRow& math_;
  std::vector<double> band_sums_;  // [B]
  std::vector<int32_t> band_;
  std::vector<float> band_logits_, band_measure_;
  std::vector<float> sample_logits_, sample_measure_, sample_squares_;
};

}  // namespace taopd
