// The resources of a process, from /proc, and the duration of a load test.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/status.h"

namespace taopd::testing {

struct ProcessUsage {
  int64_t resident_bytes = 0;
  int64_t num_descriptors = 0;
  int64_t num_threads = 0;

  static ProcessUsage Of(pid_t pid) {
    const std::string proc = "/proc/" + std::to_string(pid);
    ProcessUsage usage;
    std::ifstream statm(proc + "/statm");
    int64_t size = 0;
    statm >> size >> usage.resident_bytes;
    usage.resident_bytes *= ::sysconf(_SC_PAGESIZE);
    usage.num_descriptors = Count(proc + "/fd");
    usage.num_threads = Count(proc + "/task");
    return usage;
  }

  std::string ToString() const {
    return Concat(resident_bytes >> 20, " MiB, ", num_descriptors, " descriptors, ", num_threads,
                  " threads");
  }

 private:
  static int64_t Count(const std::string& directory) {
    std::error_code gone;
    int64_t count = 0;
    for (auto entry = std::filesystem::directory_iterator(directory, gone);
         !gone && entry != std::filesystem::directory_iterator(); entry.increment(gone)) {
      ++count;
    }
    return count;
  }
};

// Returns the value of the environment variable, or `otherwise` if it is not set.
inline int64_t NumberFromEnvironment(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoll(value);
}

}  // namespace taopd::testing
