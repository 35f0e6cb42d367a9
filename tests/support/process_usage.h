// The resources and the children of a process, from /proc.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/memory.h"
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

// Returns a field of the status of a process in bytes, or 0 if there is none.
inline int64_t StatusBytes(const std::string& field, const std::string& process = "self") {
  return NumberAfter("/proc/" + process + "/status", field + ":").value_or(0) * 1024;
}

// Forgets the peak of this process's memory, which StatusBytes("VmHWM") returns.
inline void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Returns the processes that a process has started, each thread's in their order; none once it has
// ended. The threads are read twice, because a thread that ends gives its children to another,
// which may have been read before.
inline std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> all;
  for (int pass = 0; pass < 2; ++pass) {
    std::error_code gone;
    for (auto task = std::filesystem::directory_iterator(Concat("/proc/", pid, "/task"), gone);
         !gone && task != std::filesystem::directory_iterator(); task.increment(gone)) {
      std::ifstream children(task->path() / "children");
      for (pid_t child; children >> child;) {
        if (std::find(all.begin(), all.end(), child) == all.end()) all.push_back(child);
      }
    }
  }
  return all;
}

}  // namespace taopd::testing
