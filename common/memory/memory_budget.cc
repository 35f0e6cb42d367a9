#include "common/memory/memory_budget.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/memory.h"

namespace taopd {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t ShareOf(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

MemoryBudget CpuBudgetOf(const MemoryLimits& limits, int64_t available_bytes) {
  MemoryBudget budget;
  if (limits.cpu_memory_limit_bytes > 0) {
    budget.limit_bytes = limits.cpu_memory_limit_bytes;
    budget.source = "cpu_memory_limit";
    if (budget.limit_bytes > available_bytes) {
      budget.warnings.push_back(Concat("cpu_memory_limit is ", MemoryText(budget.limit_bytes),
                                       ", but only ", MemoryText(available_bytes),
                                       " are available to this process"));
    }
    return budget;
  }
  budget.limit_bytes = ShareOf(kDefaultMemoryShare, available_bytes);
  budget.source = Concat(kDefaultMemoryShare, " of the available ", MemoryText(available_bytes));
  return budget;
}

// Returns what the limits of a single process leave to it, or kUnlimited if there are none.
int64_t LeftByOwnLimits(const std::string& root) {
  int64_t left = kUnlimited;
  for (const auto& [limit_name, size_name] :
       {std::pair{"Max data size", "VmData:"}, {"Max address space", "VmSize:"}}) {
    const auto limit = NumberAfter(root + "/proc/self/limits", limit_name);
    const auto size_kib = NumberAfter(root + "/proc/self/status", size_name);
    if (limit && size_kib) left = std::min(left, std::max<int64_t>(0, *limit - *size_kib * 1024));
  }
  return left;
}

}  // namespace

absl::Status ValidateMemoryLimits(const MemoryLimits& limits) {
  // This form of the condition also refuses NaN.
  if (!(limits.gpu_memory_utilization > 0.0 && limits.gpu_memory_utilization <= 1.0)) {
    return InvalidArgument("gpu_memory_utilization ", limits.gpu_memory_utilization,
                           " must be above 0 and at most 1");
  }
  if (limits.cpu_memory_limit_bytes < 0) {
    return InvalidArgument("cpu_memory_limit_bytes ", limits.cpu_memory_limit_bytes,
                           " must be at least 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryBudget> CpuBudget(const MemoryLimits& limits, const std::string& root) {
  const int64_t free_bytes = AvailableMemoryBytes(root);
  if (free_bytes == kUnlimited && limits.cpu_memory_limit_bytes == 0) {
    return FailedPrecondition(
        "the available memory of this machine is unknown: set cpu_memory_limit");
  }
  if (free_bytes == kUnlimited) return CpuBudgetOf(limits, kUnlimited);
  return CpuBudgetOf(limits, free_bytes + AnonymousMemoryBytes(root));
}

MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root) {
  const int64_t left = LeftByOwnLimits(root);
  if (left == kUnlimited) return budget;
  const int64_t bytes = left + AnonymousMemoryBytes(root);
  const int64_t own = ShareOf(kDefaultMemoryShare, bytes);
  if (own >= budget.limit_bytes) return budget;
  budget.limit_bytes = own;
  budget.source =
      Concat(kDefaultMemoryShare, " of the ", MemoryText(bytes), " that ulimit leaves it");
  return budget;
}

MemoryBudget CudaBudget(const MemoryLimits& limits, const std::string& device, int64_t total_bytes,
                        int64_t free_bytes) {
  MemoryBudget budget;
  budget.device = device;
  budget.limit_bytes = ShareOf(limits.gpu_memory_utilization, total_bytes);
  budget.source = Concat("gpu_memory_utilization ", limits.gpu_memory_utilization, " of ",
                         MemoryText(total_bytes));
  if (free_bytes < budget.limit_bytes) {
    budget.warnings.push_back(Concat(device, " has ", MemoryText(free_bytes), " free, less than ",
                                     budget.source, ", because others use it"));
    budget.limit_bytes = free_bytes;
    budget.source = Concat("free on ", device);
  }
  return budget;
}

absl::StatusOr<MemoryBudget> StatedBudget(const MemoryLimits& limits, const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  if (colon == std::string::npos || (kind != "cpu" && kind != "cuda")) {
    return InvalidArgument("device \"", text, "\" is not described as cpu:24GiB or cuda:80GiB");
  }
  TAOPD_ASSIGN_OR_RETURN(const int64_t bytes, Annotate(ParseMemoryBytes(text.substr(colon + 1)),
                                                       Concat("device \"", text, "\"")));
  if (bytes == 0) {
    return InvalidArgument("device \"", text,
                           "\" has 0 bytes: describe it as cpu:24GiB or cuda:80GiB");
  }
  return kind == "cpu" ? CpuBudgetOf(limits, bytes) : CudaBudget(limits, kind, bytes, bytes);
}

}  // namespace taopd
