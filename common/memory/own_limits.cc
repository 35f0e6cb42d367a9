#include "common/memory/own_limits.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/memory.h"

namespace taopd {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

}  // namespace

int64_t LeftByOwnLimits(const std::string& root) {
  int64_t left = kNoLimit;
  for (const auto& [limit_name, size_name] :
       {std::pair{"Max data size", "VmData:"}, {"Max address space", "VmSize:"}}) {
    const auto limit = NumberAfter(root + "/proc/self/limits", limit_name);
    const auto size_kib = NumberAfter(root + "/proc/self/status", size_name);
    if (limit && size_kib) left = std::min(left, std::max<int64_t>(0, *limit - *size_kib * 1024));
  }
  return left;
}

MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root) {
  const int64_t left = LeftByOwnLimits(root);
  if (left == kNoLimit) return budget;
  const int64_t bytes = left + AnonymousMemoryBytes(root);
  const auto own = static_cast<int64_t>(kDefaultMemoryShare * static_cast<double>(bytes));
  if (own >= budget.limit_bytes) return budget;
  budget.limit_bytes = own;
  budget.source =
      Concat(kDefaultMemoryShare, " of the ", MemoryText(bytes), " that ulimit leaves it");
  return budget;
}

}  // namespace taopd
