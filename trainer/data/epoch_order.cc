#include "trainer/data/epoch_order.h"

#include <cmath>
#include <numeric>

#include "common/base/check.h"
#include "common/base/random.h"

namespace taopd {

EpochOrder::EpochOrder(int64_t num_records, uint64_t seed, bool shuffle)
    : EpochOrder(std::vector<DataShare>{{num_records, 1.0}}, seed, shuffle) {}

EpochOrder::EpochOrder(std::vector<DataShare> shares, uint64_t seed, bool shuffle)
    : shares_(std::move(shares)), seed_(seed), shuffle_(shuffle) {
  StartEpoch();
}

void EpochOrder::StartEpoch() {
  order_.clear();
  int64_t first = 0;  // first record of the share
  for (size_t s = 0; s < shares_.size(); ++s) {
    const int64_t size = shares_[s].num_records;
    std::vector<int64_t> records(size);
    std::iota(records.begin(), records.end(), first);
    first += size;
    const double whole = std::floor(shares_[s].weight);
    for (double copy = 0; copy < whole; ++copy)
      order_.insert(order_.end(), records.begin(), records.end());
    // The fractional part takes successive stretches of one fixed permutation, so that every record
    // gets its turn over the epochs.
    const auto part =
        static_cast<int64_t>(std::llround((shares_[s].weight - whole) * static_cast<double>(size)));
    if (part == 0) continue;
    if (shuffle_) RandomStream(seed_, "share", {s}).Shuffle(&records);
    const auto start = static_cast<int64_t>(static_cast<__int128>(epoch_) * part % size);
    for (int64_t i = 0; i < part; ++i) order_.push_back(records[(start + i) % size]);
  }
  TAOPD_CHECK(!order_.empty());
  if (shuffle_) RandomStream(seed_, "epoch", {static_cast<uint64_t>(epoch_)}).Shuffle(&order_);
}

std::vector<int64_t> EpochOrder::Next(int64_t count) {
  std::vector<int64_t> batch;
  batch.reserve(count);
  while (static_cast<int64_t>(batch.size()) < count) {
    if (index_ == epoch_size()) {
      ++epoch_;
      index_ = 0;
      StartEpoch();
    }
    batch.push_back(order_[index_++]);
  }
  return batch;
}

absl::Status EpochOrder::Restore(int64_t epoch, int64_t index) {
  if (epoch < 0 || index < 0 || index > epoch_size()) {
    return InvalidArgument("data position epoch ", epoch, " index ", index, " is outside of the ",
                           epoch_size(), " rows of an epoch");
  }
  epoch_ = epoch;
  index_ = index;
  StartEpoch();
  return absl::OkStatus();
}

}  // namespace taopd
