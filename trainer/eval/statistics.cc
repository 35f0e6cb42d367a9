#include "trainer/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "common/base/random.h"

namespace taopd {

Interval WilsonInterval(double successes, double trials) {
  if (trials <= 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5 % quantile of the standard normal distribution
  const double p = successes / trials;
  const double z2 = kZ * kZ;
  const double center = (p + z2 / (2 * trials)) / (1 + z2 / trials);
  const double half =
      kZ / (1 + z2 / trials) * std::sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials));
  // At the ends, rounding would leave the sums slightly off 0 and 1.
  return {successes <= 0 ? 0.0 : std::max(0.0, center - half),
          successes >= trials ? 1.0 : std::min(1.0, center + half)};
}

double PassAtK(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1.0;
  double none = 1.0;  // C(n-c, k) / C(n, k)
  for (int64_t i = n - c + 1; i <= n; ++i)
    none *= 1.0 - static_cast<double>(k) / static_cast<double>(i);
  return 1.0 - none;
}

bool MajorityIsCorrect(const std::vector<ResponseOutcome>& responses) {
  struct Answer {
    int64_t votes = 0;
    size_t first = 0;
  };
  std::map<std::string, Answer> answers;
  const Answer* winner = nullptr;
  for (size_t i = 0; i < responses.size(); ++i) {
    if (responses[i].extracted.empty()) continue;
    Answer& answer = answers[responses[i].extracted];
    if (answer.votes++ == 0) answer.first = i;
  }
  for (const auto& [text, answer] : answers) {
    if (winner == nullptr || answer.votes > winner->votes ||
        (answer.votes == winner->votes && answer.first < winner->first)) {
      winner = &answer;
    }
  }
  return winner != nullptr && responses[winner->first].correct;
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Interval BootstrapInterval(const std::vector<std::vector<double>>& strata, uint64_t seed,
                           int64_t num_resamples) {
  if (strata.empty()) return {};
  const double first = strata[0][0];
  size_t num_values = 0;
  bool all_equal = true;
  for (const auto& stratum : strata) {
    num_values += stratum.size();
    for (double value : stratum) all_equal = all_equal && value == first;
  }
  if (all_equal && (first == 0 || first == 1)) {
    return WilsonInterval(first * static_cast<double>(num_values), static_cast<double>(num_values));
  }
  RandomStream random(seed, "bootstrap");
  std::vector<double> means(num_resamples);
  for (double& mean : means) {
    for (const auto& stratum : strata) {
      double sum = 0;
      for (size_t i = 0; i < stratum.size(); ++i) sum += stratum[random.NextBelow(stratum.size())];
      mean += sum / static_cast<double>(stratum.size()) / static_cast<double>(strata.size());
    }
  }
  std::ranges::sort(means);
  const auto at = [&](double share) {
    return means[static_cast<size_t>(share * static_cast<double>(num_resamples - 1))];
  };
  return {at(0.025), at(0.975)};
}

}  // namespace taopd
