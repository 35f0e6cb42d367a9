#include "trainer/step/balance/balance_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace taopd {
namespace {

constexpr double kMinGain = 0.01;  // as a share of the mean cost

// Exchanges one sequence of the heaviest share for one of the lightest, or for none (-1).
struct Trade {
  int64_t give = -1;  // positions in the shares
  int64_t take = -1;
  double moved = 0;  // cost
};

// Returns the trade that moves closest to half of `gap`.
Trade BestTrade(const std::vector<int64_t>& heavy, const std::vector<int64_t>& light,
                const std::vector<double>& costs, double gap) {
  Trade best;
  double best_distance = gap / 2;
  const auto size = static_cast<int64_t>(light.size());
  for (int64_t give = 0; give < static_cast<int64_t>(heavy.size()); ++give) {
    for (int64_t take = heavy.size() > 1 ? -1 : 0; take < size; ++take) {
      const double moved = costs[heavy[give]] - (take < 0 ? 0 : costs[light[take]]);
      const double distance = std::abs(gap / 2 - moved);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = {give, take, moved};
    }
  }
  return best;
}

}  // namespace

double SequenceCost(const ModelConfig& config, int64_t num_tokens, int64_t num_rows) {
  const auto H = static_cast<double>(config.hidden_size);
  const auto Q = static_cast<double>(config.num_attention_heads * config.head_dim);
  const auto K = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const auto T = static_cast<double>(num_tokens);
  double cost = static_cast<double>(num_rows) * static_cast<double>(config.vocab_size) * H;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t mlp = config.IsSparse(layer)
                            ? config.moe.experts_per_token * config.moe.intermediate_size
                            : config.intermediate_size;
    cost += T * (2 * H * (Q + K) + 3 * H * static_cast<double>(mlp)) + T * T * Q;
  }
  return cost;
}

std::vector<std::vector<int64_t>> BalanceShares(std::vector<std::vector<int64_t>> shares,
                                                const std::vector<double>& costs) {
  std::vector<double> loads;
  for (const std::vector<int64_t>& share : shares) {
    double load = 0;
    for (const int64_t sequence : share) load += costs[sequence];
    loads.push_back(load);
  }
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(1, loads.size()));
  // Every trade lowers the highest cost; the limit is for ties that rounding keeps alive.
  for (size_t trade = 0; trade < 2 * costs.size(); ++trade) {
    const auto heavy = std::ranges::max_element(loads) - loads.begin();
    const auto light = std::ranges::min_element(loads) - loads.begin();
    const double gap = loads[heavy] - loads[light];
    const Trade best = BestTrade(shares[heavy], shares[light], costs, gap);
    if (best.give < 0 || std::min(best.moved, gap - best.moved) < kMinGain * mean) break;
    std::vector<int64_t>&from = shares[heavy], &to = shares[light];
    const int64_t given = from[best.give];
    from.erase(from.begin() + best.give);
    if (best.take >= 0) {
      from.push_back(to[best.take]);
      to.erase(to.begin() + best.take);
    }
    to.push_back(given);
    loads[heavy] -= best.moved;
    loads[light] += best.moved;
  }
  for (std::vector<int64_t>& share : shares) std::ranges::sort(share);
  return shares;
}

}  // namespace taopd
