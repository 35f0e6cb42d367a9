// The part of a device's memory that this process may take. The memory plan is made against it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The fraction of a device's memory that is planned for; the rest is for what a plan cannot know.
inline constexpr double kDefaultMemoryShare = 0.9;

struct MemoryLimits {
  // The fraction of a CUDA device's whole memory that this process may take, as in vLLM. In (0, 1].
  double gpu_memory_utilization = kDefaultMemoryShare;
  // The memory that this process may take. 0 means kDefaultMemoryShare of the sum of what is
  // available to it (common/base/memory.h) and what it already holds.
  int64_t cpu_memory_limit_bytes = 0;
};

// Returns INVALID_ARGUMENT naming the member, its value and its limit.
absl::Status ValidateMemoryLimits(const MemoryLimits& limits);

struct MemoryBudget {
  std::string device = "cpu";  // "cpu", "cuda:0"
  int64_t limit_bytes = 0;     // what this process may hold there in total
  std::string source;          // the origin of the limit, for messages
  std::vector<std::string> warnings;

  bool on_cpu() const { return device == "cpu"; }
};

// Returns the budget of this process on this machine. Returns FAILED_PRECONDITION if the available
// memory is unknown and no limit is given. `root` is that of common/base/memory.h.
absl::StatusOr<MemoryBudget> CpuBudget(const MemoryLimits& limits, const std::string& root = "");

// Returns the budget, or kDefaultMemoryShare of what this process already holds and what the limits
// of a single process leave to it, if that is less: ulimit -d (RLIMIT_DATA) and ulimit -v
// (RLIMIT_AS), which processes do not share. `root` as above.
MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root = "");

// Returns the budget on a CUDA device with `free_bytes` free. If other processes hold so
// much that the fraction is not free, the budget is the free memory, with a warning.
MemoryBudget CudaBudget(const MemoryLimits& limits, const std::string& device, int64_t total_bytes,
                        int64_t free_bytes);

// Returns the budget on a device that is described but not present: "cpu:24GiB" or "cuda:80GiB", a
// kind and its memory, all of which is free. Returns INVALID_ARGUMENT for any other text.
absl::StatusOr<MemoryBudget> StatedBudget(const MemoryLimits& limits, const std::string& text);

}  // namespace taopd
