#include "trainer/guard/collapse_guard.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace taopd {
namespace {

using nlohmann::json;

// The quantities that are compared with their values at the start of the run.
enum Watched : size_t { kTailRatio, kEntropy, kLength };

constexpr char kTailRatioName[] = "policy/student_tail / policy/teacher_tail";
constexpr char kEntropyName[] = "policy/entropy";
constexpr char kLengthName[] = "rollout/response_length_mean";

std::optional<double> FiniteValueOf(const Metrics& metrics, const std::string& name) {
  const double* const value = FindMetric(metrics, name);
  if (value == nullptr || !std::isfinite(*value)) return std::nullopt;
  return *value;
}

// A teacher whose tail is empty would make every ratio infinite.
constexpr double kSmallestTail = 1e-6;

std::optional<double> TailRatio(const Metrics& metrics) {
  const auto student = FiniteValueOf(metrics, "policy/student_tail");
  const auto teacher = FiniteValueOf(metrics, "policy/teacher_tail");
  if (!student || !teacher) return std::nullopt;
  return *student / std::max(*teacher, kSmallestTail);
}

std::optional<double> Times(double factor, std::optional<double> baseline) {
  return baseline ? std::optional<double>(factor * *baseline) : std::nullopt;
}

}  // namespace

struct CollapseGuard::Check {
  const char* guard;
  const GuardRuleConfig* rule;
  std::string metric;
  std::optional<double> value;
  std::optional<double> limit;  // nullopt if it is not known yet
  bool alarm_is_below = false;
};

std::optional<double> CollapseGuard::Baseline(size_t watched) const {
  if (baseline_counts_[watched] < config_.baseline_steps) return std::nullopt;
  return baseline_sums_[watched] / static_cast<double>(baseline_counts_[watched]);
}

std::vector<CollapseGuard::Check> CollapseGuard::ChecksOf(const Metrics& metrics,
                                                          const WatchedValues& watched) const {
  const auto tail_baseline = Baseline(kTailRatio);
  const auto at_least_one =
      tail_baseline ? std::optional<double>(std::max(*tail_baseline, 1.0)) : std::nullopt;
  const auto entropy = Baseline(kEntropy), length = Baseline(kLength);
  const GuardConfig& c = config_;
  return {
      {"tail_ratio", &c.tail_ratio, kTailRatioName, watched[kTailRatio],
       Times(c.tail_ratio.limit, at_least_one)},
      {"low_entropy", &c.low_entropy, kEntropyName, watched[kEntropy],
       Times(c.low_entropy.limit, entropy), true},
      {"high_entropy", &c.high_entropy, kEntropyName, watched[kEntropy],
       Times(c.high_entropy.limit, entropy)},
      {"long_responses", &c.long_responses, kLengthName, watched[kLength],
       Times(c.long_responses.limit, length)},
      {"short_responses", &c.short_responses, kLengthName, watched[kLength],
       Times(c.short_responses.limit, length), true},
      {"repetition", &c.repetition, "rollout/repeated_ngrams",
       FiniteValueOf(metrics, "rollout/repeated_ngrams"), c.repetition.limit},
      {"kl_to_start", &c.kl_to_start, "policy/kl_to_start",
       FiniteValueOf(metrics, "policy/kl_to_start"), c.kl_to_start.limit},
  };
}

void CollapseGuard::AddToBaselines(const WatchedValues& watched) {
  for (size_t i = 0; i < kNumWatched; ++i) {
    if (!watched[i] || baseline_counts_[i] >= config_.baseline_steps) continue;
    baseline_sums_[i] += *watched[i];
    ++baseline_counts_[i];
  }
}

std::vector<GuardAlarm> CollapseGuard::Observe(int64_t step, const Metrics& metrics) {
  const WatchedValues watched = {TailRatio(metrics), FiniteValueOf(metrics, kEntropyName),
                                 FiniteValueOf(metrics, kLengthName)};
  const std::vector<Check> checks = ChecksOf(metrics, watched);
  TAOPD_CHECK_EQ(checks.size(), kNumGuards);
  std::vector<GuardAlarm> alarms;
  pauses_ = false;
  for (size_t i = 0; i < kNumGuards; ++i) {
    const Check& check = checks[i];
    if (check.rule->limit == 0) {
      num_in_a_row_[i] = 0;
      continue;
    }
    if (check.value && check.limit) {
      const bool is_on =
          check.alarm_is_below ? *check.value < *check.limit : *check.value > *check.limit;
      num_in_a_row_[i] = is_on ? num_in_a_row_[i] + 1 : 0;
    }
    if (num_in_a_row_[i] == 0 || !check.value || !check.limit) continue;
    alarms.push_back(
        {check.guard, check.metric, *check.value, *check.limit, num_in_a_row_[i],
         num_in_a_row_[i] >= config_.patience ? check.rule->action : GuardAction::kWarn});
    pauses_ |= check.rule->action == GuardAction::kPause && num_in_a_row_[i] == config_.patience;
  }
  AddToBaselines(watched);
  const bool is_good = std::ranges::all_of(num_in_a_row_, [](int64_t count) { return count == 0; });
  if (is_good) last_good_step_ = step;
  return alarms;
}

std::string CollapseGuard::State() const {
  return json{{"last_good_step", last_good_step_},
              {"baseline_sums", baseline_sums_},
              {"baseline_counts", baseline_counts_},
              {"num_in_a_row", num_in_a_row_},
              {"pauses", pauses_}}
      .dump();
}

absl::Status CollapseGuard::Restore(const std::string& state) {
  const json values = json::parse(state, nullptr, false);
  const auto is_list = [&](const char* name, size_t size) {
    if (!values.contains(name) || !values[name].is_array() || values[name].size() != size)
      return false;
    return std::ranges::all_of(values[name], [](const json& value) { return value.is_number(); });
  };
  if (!values.is_object() || !values.contains("last_good_step") ||
      !values["last_good_step"].is_number_integer() || !is_list("baseline_sums", kNumWatched) ||
      !is_list("baseline_counts", kNumWatched) || !is_list("num_in_a_row", kNumGuards)) {
    return DataLoss("the state of the collapse guard is malformed");
  }
  last_good_step_ = values["last_good_step"].get<int64_t>();
  baseline_sums_ = values["baseline_sums"].get<decltype(baseline_sums_)>();
  baseline_counts_ = values["baseline_counts"].get<decltype(baseline_counts_)>();
  num_in_a_row_ = values["num_in_a_row"].get<decltype(num_in_a_row_)>();
  pauses_ = values.contains("pauses") && values["pauses"] == true;  // older states lack it
  return absl::OkStatus();
}

}  // namespace taopd
