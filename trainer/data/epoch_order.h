// The order in which records are used: a pure function of (seed, epoch), so that the position in
// the data is two numbers, which a checkpoint keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Records that share a weight, such as those of one file.
struct DataShare {
  int64_t num_records = 0;
  // How often a record is used in an epoch. 2: twice; 0.25: a quarter of the records each epoch,
  // another quarter in the next one; 1.5: once, and half of them once more.
  double weight = 1.0;
};

// Endless batches: epoch after epoch; a batch may span two epochs. One thread.
class EpochOrder {
 public:
  EpochOrder(int64_t num_records, uint64_t seed, bool shuffle);
  // Records are numbered over the shares in their order. REQUIRES: weights > 0, and an epoch that
  // is not empty.
  EpochOrder(std::vector<DataShare> shares, uint64_t seed, bool shuffle);
  std::vector<int64_t> Next(int64_t count);

  int64_t epoch() const { return epoch_; }
  int64_t index() const { return index_; }
  // Records of an epoch, repeated ones counted each time; the same for every epoch.
  int64_t epoch_size() const { return static_cast<int64_t>(order_.size()); }
  // INVALID_ARGUMENT when the position does not exist in this data.
  absl::Status Restore(int64_t epoch, int64_t index);

 private:
  void StartEpoch();
  const std::vector<DataShare> shares_;
  const uint64_t seed_;
  const bool shuffle_;
  int64_t epoch_ = 0;
  int64_t index_ = 0;
  std::vector<int64_t> order_;
};

}  // namespace taopd
