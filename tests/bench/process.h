// Functions by which a benchmark program measures its own process and ends at an error.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>

#include "common/base/memory.h"

namespace taopd {

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

// Returns a field of /proc/self/status in bytes.
inline int64_t StatusBytes(const std::string& field) {
  return NumberAfter("/proc/self/status", field + ":").value_or(0) * 1024;
}

}  // namespace taopd
