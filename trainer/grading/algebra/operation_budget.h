// Bounds the work for one verdict by a number of operations. It reads no clock, so every machine
// reaches the same verdict.
#pragma once

#include <cstdint>

namespace taopd::grading {

// The operations that are left. An evaluation that would exceed them has no value.
struct OperationBudget {
  int64_t left = 60000;
  // Returns false if the budget does not suffice.
  bool Spend(int64_t operations = 1) { return (left -= operations) >= 0; }
};

}  // namespace taopd::grading
