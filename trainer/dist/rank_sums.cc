#include "trainer/dist/rank_sums.h"

namespace taopd {

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

}  // namespace taopd
