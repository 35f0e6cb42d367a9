// How much of a device's memory this process may take. The memory plan is made against it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The share of a device's memory that is planned for; the rest is for what a plan cannot know.
inline constexpr double kDefaultMemoryShare = 0.9;

struct MemoryLimits {
  // The share of a CUDA device's whole memory that this process may take, as in vLLM. In (0, 1].
  double gpu_memory_utilization = kDefaultMemoryShare;
  // What this process may take of the machine's memory; 0 = kDefaultMemoryShare of what is
  // available to it (common/base/memory.h) and of what it already holds.
  int64_t cpu_memory_limit_bytes = 0;
};

// Returns INVALID_ARGUMENT naming the member, its value and its limit.
absl::Status ValidateMemoryLimits(const MemoryLimits& limits);

struct MemoryBudget {
  std::string device = "cpu";  // "cpu", "cuda:0"
  int64_t limit_bytes = 0;     // what this process may hold there in all
  std::string source;          // where the limit comes from, for messages
  std::vector<std::string> warnings;

  bool on_cpu() const { return device == "cpu"; }
};

// The budget of this process on this machine. Returns FAILED_PRECONDITION if the available memory
// is not known and no limit is given. `root` is that of common/base/memory.h.
absl::StatusOr<MemoryBudget> CpuBudget(const MemoryLimits& limits, const std::string& root = "");

// The budget on a CUDA device of which `free_bytes` are free. Where others hold so much that the
// share is not free, the budget is what is free, with a warning.
MemoryBudget CudaBudget(const MemoryLimits& limits, const std::string& device, int64_t total_bytes,
                        int64_t free_bytes);

// The budget on a device that is described rather than there: "cpu:24GiB" or "cuda:80GiB", a kind
// and its memory, all of which is free. Returns INVALID_ARGUMENT for any other text.
absl::StatusOr<MemoryBudget> StatedBudget(const MemoryLimits& limits, const std::string& text);

}  // namespace taopd
