// Bounds the work for one verdict by a number of operations. It does not depend on a clock, so
// every machine reaches the same verdict.
#pragma once

#include <cstdint>

namespace taopd::grading {

// The number of operations left. An evaluation that would exceed it has no value.
struct OperationBudget {
  int64_t left = 60000;
  // Returns false if the budget is exceeded.
  bool Spend(int64_t operations = 1) { return (left -= operations) >= 0; }
};

}  // namespace taopd::grading
