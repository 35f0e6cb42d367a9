// The order in which records are used. The order of an epoch depends only on the seed and the
// epoch's number, so the position in the data is two numbers, which a checkpoint keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Records that share a weight, such as those of one file.
struct DataShare {
  int64_t num_records = 0;
  // The number of times a record is used in an epoch:
  //   2     Every record is used twice.
  //   0.25  A quarter of the records is used, and another quarter in the next epoch.
  //   1.5   Every record is used once, and half of the records once more.
  double weight = 1.0;
};

// Yields batches endlessly, epoch after epoch. A batch may span two epochs. Not thread-safe.
class EpochOrder {
 public:
  EpochOrder(int64_t num_records, uint64_t seed, bool shuffle);
  // Records are numbered from 0 across all shares, in the order of the shares. REQUIRES: every
  // weight is above 0, and an epoch has at least one record.
  EpochOrder(std::vector<DataShare> shares, uint64_t seed, bool shuffle);
  // Returns the numbers of the next `count` records.
  std::vector<int64_t> Next(int64_t count);

  // The position: the current epoch, and the number of its records that Next has returned.
  int64_t epoch() const { return epoch_; }
  int64_t index() const { return index_; }
  // The number of records in an epoch; a repeated record counts each time. It is the same for every
  // epoch.
  int64_t epoch_size() const { return static_cast<int64_t>(order_.size()); }
  // Continues from a position. Returns INVALID_ARGUMENT if this data has no such position.
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
