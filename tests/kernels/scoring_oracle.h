// The scores of one row of logits in float64, by plain loops and a stable sort.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace taopd::testing {

inline double LogSumExpOf(const std::vector<double>& x) {
  double high = -std::numeric_limits<double>::infinity();
  for (double v : x) high = std::max(high, v);
  if (std::isinf(high)) return high;
  double sum = 0;
  for (double v : x) sum += std::exp(v - high);
  return high + std::log(sum);
}

struct ScoredRow {
  std::vector<double> log_probs;  // [V]
  std::vector<int32_t> order;     // [V], descending by log-prob; ties go to the lower id
  double log_sum_exp = 0;
  double log_support_mass = 0;    // of the top-k
  double log_tail = 0;            // of all other ids
  double candidate_log_tail = 0;  // of the ids that are neither in the top-k nor candidates
  double entropy = 0;

  int64_t RankOf(int32_t id) const {
    return std::count_if(log_probs.begin(), log_probs.end(),
                         [&](double log_p) { return log_p >= log_probs[id]; });
  }
};

template <typename Real>
ScoredRow ScoreRow(std::span<const Real> logits, double temperature, int32_t top_k,
                   std::span<const int32_t> candidates) {
  ScoredRow row;
  for (Real logit : logits) row.log_probs.push_back(logit / temperature);
  row.log_sum_exp = LogSumExpOf(row.log_probs);
  for (double& log_p : row.log_probs) {
    log_p -= row.log_sum_exp;
    row.entropy -= std::exp(log_p) * log_p;
  }
  row.order.resize(logits.size());
  std::iota(row.order.begin(), row.order.end(), 0);
  std::stable_sort(row.order.begin(), row.order.end(),
                   [&](int32_t a, int32_t b) { return row.log_probs[a] > row.log_probs[b]; });
  std::vector<double> support, tail, outside;
  for (int32_t id : row.order) {
    const bool in_support = support.size() < static_cast<size_t>(top_k);
    const double log_p = row.log_probs[id];
    (in_support ? support : tail).push_back(log_p);
    const bool is_candidate =
        std::find(candidates.begin(), candidates.end(), id) != candidates.end();
    if (!in_support && !is_candidate) outside.push_back(log_p);
  }
  row.log_support_mass = LogSumExpOf(support);
  row.log_tail = LogSumExpOf(tail);
  row.candidate_log_tail = LogSumExpOf(outside);
  return row;
}

}  // namespace taopd::testing
