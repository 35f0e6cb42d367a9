// Functions by which a benchmark program measures its own process and ends at an error.
#pragma once

#include <absl/status/statusor.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <utility>

#include "tests/support/process_usage.h"

namespace taopd {

using testing::ResetPeak;
using testing::StatusBytes;

inline void OrDie(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status.ToString() << "\n";
  std::exit(1);
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  OrDie(value.status());
  return *std::move(value);
}

// Returns the CPU time of all threads.
inline double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace taopd
