#include "trainer/dist/rank_metrics.h"

#include <deque>

#include "trainer/dist/rank_sums.h"

namespace taopd {
namespace {

const RankMetric* RowOf(std::string_view metric) {
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

absl::Status CombineRankMetrics(ProcessGroup* group, Metrics* metrics) {
  if (group->world_size() == 1) return absl::OkStatus();
  RankSums all;
  for (auto& [name, value] : *metrics) {
    const RankMetric* row = RowOf(name);
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
    const RankMetric* row = RowOf(name);
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
