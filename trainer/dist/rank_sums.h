// Numbers that each rank has counted or measured for its share, made into those of all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"

namespace taopd {

// Names numbers, which must outlive the object, then replaces them. All ranks name as many.
class RankSums {
 public:
  void Add(double* number) { reals_.push_back(number); }
  // Counts below 2^53.
  void Add(int64_t* number) { counts_.push_back(number); }
  // For a number of which the largest of the ranks' is meant.
  void AddLargest(double* number) { largest_.push_back(number); }

  // Replaces each number by its sum over the ranks of `group`, or its largest, the same on each of
  // them. In a world of one nothing changes.
  absl::Status Reduce(ProcessGroup* group) const;

 private:
  std::vector<double*> reals_;
  std::vector<int64_t*> counts_;
  std::vector<double*> largest_;
};

}  // namespace taopd
