#include "trainer/dist/rank_metrics.h"

namespace taopd {
namespace {

const RankMetric* MetricRowOf(std::string_view metric) {
  for (const RankMetric& row : kRankMetrics) {
    const bool is_group = row.name.ends_with('/');
    if (is_group ? metric.starts_with(row.name) : metric == row.name) return &row;
  }
  return nullptr;
}

void AddStats(TeacherClientStats* stats, RankSums* sums) {
  for (uint64_t* counter : stats->Counters()) sums->Add(counter);
  sums->Add(&stats->age);
  for (EndpointStats& endpoint : stats->endpoints) {
    for (uint64_t* counter :
         {&endpoint.attempts, &endpoint.failures, &endpoint.bytes_sent, &endpoint.bytes_received}) {
      sums->Add(counter);
    }
    sums->Add(&endpoint.latency);
    sums->Add(&endpoint.left_out);
  }
  for (TeacherClientStats& teacher : stats->teachers) AddStats(&teacher, sums);
}

}  // namespace

absl::Status RankSums::Reduce(ProcessGroup* group) const {
  if (group->world_size() == 1) return absl::OkStatus();
  const at::Tensor numbers =
      at::empty({static_cast<int64_t>(reals_.size() + counts_.size())}, at::kDouble);
  double* packed = numbers.mutable_data_ptr<double>();
  for (const auto* all : {&reals_, &counts_}) {
    for (const Number& number : *all) *packed++ = number.get();
  }
  if (numbers.numel() > 0) TAOPD_RETURN_IF_ERROR(group->AllReduce(numbers, Reduction::kSum));
  const double* sum = numbers.const_data_ptr<double>();
  for (const auto* all : {&reals_, &counts_}) {
    for (const Number& number : *all) number.set(*sum++);
  }
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
    if (row->reduction == RankReduction::kMean) {
      value /= static_cast<double>(group->world_size());
      all.Add(&value);
      continue;
    }
    if (row->reduction == RankReduction::kSmallest) value = -value;
    all.AddLargest(&value);
  }
  TAOPD_RETURN_IF_ERROR(all.Reduce(group));
  for (auto& [name, value] : *metrics) {
    const RankMetric* row = MetricRowOf(name);
    if (row != nullptr && row->reduction == RankReduction::kSmallest) value = -value;
  }
  return absl::OkStatus();
}

absl::Status SumOverRanks(ProcessGroup* group, TeacherClientStats* stats) {
  if (group->world_size() == 1) return absl::OkStatus();
  RankSums all;
  AddStats(stats, &all);
  return all.Reduce(group);
}

}  // namespace taopd
