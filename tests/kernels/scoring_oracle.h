// The scores of one row of logits in float64, by plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "taopd/head/dense_row.h"
#include "taopd/objective/log_math.h"

namespace taopd::testing {

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
  const auto total = [](const std::vector<double>& x) {
    return LogSumExp(x.data(), static_cast<int32_t>(x.size()));
  };
  ScoredRow row;
  for (Real logit : logits) row.log_probs.push_back(logit / temperature);
  row.log_sum_exp = total(row.log_probs);
  for (double& log_p : row.log_probs) {
    log_p -= row.log_sum_exp;
    row.entropy -= std::exp(log_p) * log_p;
  }
  row.order = cpu::LargestIds(row.log_probs, static_cast<int32_t>(logits.size()));
  std::vector<double> support, tail, outside;
  for (int32_t id : row.order) {
    const bool in_support = support.size() < static_cast<size_t>(top_k);
    const double log_p = row.log_probs[id];
    (in_support ? support : tail).push_back(log_p);
    const bool is_candidate =
        std::find(candidates.begin(), candidates.end(), id) != candidates.end();
    if (!in_support && !is_candidate) outside.push_back(log_p);
  }
  row.log_support_mass = total(support);
  row.log_tail = total(tail);
  row.candidate_log_tail = total(outside);
  return row;
}

}  // namespace taopd::testing
