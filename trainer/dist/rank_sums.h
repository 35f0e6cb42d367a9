// Combines numbers that each rank has counted or measured for its part over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"

namespace taopd {

// Registers numbers, then replaces them. The numbers must outlive the object. All ranks must
// register the same number of them.
class RankSums {
 public:
  void Add(double* number) { reals_.push_back(number); }
  // The sum must be below 2^53.
  void Add(int64_t* number) { counts_.push_back(number); }
  // Registers a number that is replaced by the largest of the ranks' values.
  void AddLargest(double* number) { largest_.push_back(number); }

  // Replaces each number by its sum (or its largest value) over the ranks of `group`, which is the
  // same on all ranks. With one rank nothing changes.
  absl::Status Reduce(ProcessGroup* group) const;

 private:
  std::vector<double*> reals_;
  std::vector<int64_t*> counts_;
  std::vector<double*> largest_;
};

}  // namespace taopd
