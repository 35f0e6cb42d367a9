#include "trainer/dist/rank_metrics.h"

#include <deque>

namespace taopd {
namespace {

const RankMetric* MetricRowOf(std::string_view metric) {
  for (const RankMetric& row : kRankMetrics) {
    const bool is_group = row.name.ends_with('/');
    if (is_group ? metric.starts_with(row.name) : metric == row.name) return &row;
  }
  return nullptr;
}

// Converts counters and durations to the numbers that RankSums takes, and back.
class StatsSums {
 public:
  void Add(uint64_t* counter) {
    counters_.emplace_back(counter, static_cast<int64_t>(*counter));
    sums_.Add(&counters_.back().second);
  }
  void Add(absl::Duration* duration) {
    durations_.emplace_back(duration, absl::ToDoubleSeconds(*duration));
    sums_.Add(&durations_.back().second);
  }
  void Add(TeacherClientStats* stats) {
    for (uint64_t* counter :
         {&stats->requests, &stats->retries, &stats->failures, &stats->hedges, &stats->hedges_won,
          &stats->cache_hits, &stats->cache_misses, &stats->cache_damaged, &stats->cache_evicted}) {
      Add(counter);
    }
    Add(&stats->age);
    for (EndpointStats& endpoint : stats->endpoints) {
      for (uint64_t* counter : {&endpoint.attempts, &endpoint.failures, &endpoint.bytes_sent,
                                &endpoint.bytes_received}) {
        Add(counter);
      }
      Add(&endpoint.latency);
      Add(&endpoint.left_out);
    }
    for (TeacherClientStats& teacher : stats->teachers) Add(&teacher);
  }
  absl::Status Reduce(ProcessGroup* group) {
    TAOPD_RETURN_IF_ERROR(sums_.Reduce(group));
    for (const auto& [counter, sum] : counters_) *counter = static_cast<uint64_t>(sum);
    for (const auto& [duration, sum] : durations_) *duration = absl::Seconds(sum);
    return absl::OkStatus();
  }

 private:
  // Deques, because their elements never move.
  std::deque<std::pair<uint64_t*, int64_t>> counters_;
  std::deque<std::pair<absl::Duration*, double>> durations_;
  RankSums sums_;
};

}  // namespace

absl::Status RankSums::Reduce(ProcessGroup* group) const {
  if (group->world_size() == 1) return absl::OkStatus();
  const at::Tensor numbers =
      at::empty({static_cast<int64_t>(reals_.size() + counts_.size())}, at::kDouble);
  double* packed = numbers.mutable_data_ptr<double>();
  for (const double* number : reals_) *packed++ = *number;
  for (const int64_t* number : counts_) *packed++ = static_cast<double>(*number);
  if (numbers.numel() > 0) TAOPD_RETURN_IF_ERROR(group->AllReduce(numbers, Reduction::kSum));
  const double* sum = numbers.const_data_ptr<double>();
  for (double* number : reals_) *number = *sum++;
  for (int64_t* number : counts_) *number = static_cast<int64_t>(*sum++);
  if (largest_.empty()) return absl::OkStatus();
  const at::Tensor peaks = at::empty({static_cast<int64_t>(largest_.size())}, at::kDouble);
  for (size_t i = 0; i < largest_.size(); ++i) peaks.mutable_data_ptr<double>()[i] = *largest_[i];
  TAOPD_RETURN_IF_ERROR(group->AllReduce(peaks, Reduction::kMax));
  for (size_t i = 0; i < largest_.size(); ++i) *largest_[i] = peaks.const_data_ptr<double>()[i];
  return absl::OkStatus();
}

absl::Status CombineRankMetrics(ProcessGroup* group, Metrics* metrics) {
  if (group->world_size() == 1) return absl::OkStatus();
  RankSums all;
  for (auto& [name, value] : *metrics) {
    const RankMetric* row = MetricRowOf(name);
    if (row == nullptr) continue;
    if (row->how == OverRanks::kMean) {
      value /= static_cast<double>(group->world_size());
      all.Add(&value);
      continue;
    }
    if (row->how == OverRanks::kSmallest) value = -value;
    all.AddLargest(&value);
  }
  TAOPD_RETURN_IF_ERROR(all.Reduce(group));
  for (auto& [name, value] : *metrics) {
    const RankMetric* row = MetricRowOf(name);
    if (row != nullptr && row->how == OverRanks::kSmallest) value = -value;
  }
  return absl::OkStatus();
}

absl::Status SumOverRanks(ProcessGroup* group, TeacherClientStats* stats) {
  if (group->world_size() == 1) return absl::OkStatus();
  StatsSums all;
  all.Add(stats);
  return all.Reduce(group);
}

}  // namespace taopd
